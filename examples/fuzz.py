#!/usr/bin/env python3
"""A fuzzer that resets by fork: every message meets the target as it was, in a clone that is thrown away.

    cc -static -O1 examples/fuzz.c -o target && forkyard run tiny --name p --max-clones 16
    forkyard cp target p:/bin/target && forkyard exec -d p -- /bin/target
    printf 'HELO a\\nAUTH a\\nNAME a\\n' | examples/fuzz.py p --port 7000

Mutates the lines of its input. A clone whose target answers with a word not seen before is kept, as a state to go on from:
what takes several messages is found one at a time. It goes by answers alone, not by coverage as AFL++ does.
Ends with the first messages that end the target, or make it hang.
"""

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from forkyard_host import Forkyard


def mutated(seed, dice):
    """A message like this one, with one or two things wrong with it, or nothing."""
    message = bytearray(seed)
    for _ in range(dice.randrange(3)):
        at = dice.randrange(len(message) + 1)
        other, many = bytes([dice.randrange(32, 127)]), message[at : at + 1] * dice.choice([2, 9, 65, 257])
        message[at : at + 1] = dice.choice([b"", other, many])
    return bytes(message)


def answer(vm, port, message):
    """The first word of what the target says to this: nothing if it ends instead."""
    try:
        with vm.connect(port) as sock:
            sock.settimeout(20)
            sock.sendall(message + b"\n")
            return sock.makefile("rb").readline().split(b" ")[0].strip()
    except TimeoutError:
        return b""


def fuzz(root, port, seeds, dice, batch, execs):
    """The messages that end the target or make it hang, none if none did, and how many were tried."""
    states, alive, tried = {b"": (root, [])}, [], 0
    with ThreadPoolExecutor(batch) as pool:
        try:
            while tried < execs:
                # Rather from a state that was found late: it took more to get there.
                [(vm, path)] = dice.choices(list(states.values()), range(1, len(states) + 1))
                messages = [mutated(dice.choice(seeds), dice) for _ in range(batch)]
                forked = vm.fork(batch)
                alive += forked.vms
                tried += batch
                for clone, message, said in zip(forked, messages, pool.map(answer, forked, [port] * batch, messages)):
                    if not said:
                        return [*path, message], tried
                    states.setdefault(said, (clone, [*path, message]))
                kept = [vm for vm, _ in states.values()]
                list(pool.map(type(root).remove, [vm for vm in alive if vm not in kept]))
                alive = [vm for vm in alive if vm in kept]
            return [], tried
        finally:
            list(pool.map(type(root).remove, alive))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("port", 7000), ("execs", 1000), ("batch", 8), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("vm")
    args = parser.parse_args()
    seeds, dice, begun = sys.stdin.buffer.read().splitlines(), random.Random(args.seed), time.monotonic()
    path, tried = fuzz(Forkyard().vm(args.vm), args.port, seeds, dice, args.batch, args.execs)
    for message in path:
        print(message.decode(errors="backslashreplace"))
    print(f"{tried} executions, {tried / (time.monotonic() - begun):.1f} a second", file=sys.stderr)


main()
