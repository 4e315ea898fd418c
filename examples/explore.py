#!/usr/bin/env python3
"""An agent's sandbox: continuations of one state are tried side by side, and the best is gone on from.

    forkyard run tiny --name p --max-clones 16
    examples/explore.py p --depth 3 --keep 2 --score 'a command that prints a number' 'one try' 'another'

The state is the VM: memory, processes, disk. Each step forks a clone for every candidate, runs that there and asks for the
score, of which more is better; all but the best are removed. Nothing is replayed to get back to a state. The best stays.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

from forkyard_host import CommandFailed, Forkyard, ForkyardError


class Sandbox:
    """All that a search takes; VMs by their names."""
    def __init__(self):
        self.host = Forkyard()

    def fork(self, vm, count):
        forked = self.host.vm(vm).fork(count)
        for clone in forked.vms if forked.errors else []:
            clone.remove()
        return [clone.name for clone in forked]  # Raises PartialFork if one is missing.

    def remove(self, vm):
        self.host.vm(vm).remove()

    def run(self, commands):
        """Runs pairs of VM and command side by side: what each printed, None where one failed."""
        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(lambda it: self.one(*it), commands))

    def one(self, vm, command):
        try:
            return self.host.vm(vm).exec("sh", "-c", command, timeout=60, check=True).text
        except (ForkyardError, CommandFailed):
            return None


def search(sandbox, vm, candidates, score, depth, keep):
    """Finds the best state: its score, its VM and the candidates that led to it."""
    best = (float("-inf"), vm, [])
    beam, alive = [best], set()
    try:
        for _ in range(depth):
            tries = []
            for _, vm, path in beam:
                tries += [(clone, [*path, it]) for clone, it in zip(sandbox.fork(vm, len(candidates)), candidates)]
                alive.update(vm for vm, _ in tries)
            told = sandbox.run([(vm, f"{{ {path[-1]}\n}} >&2 || exit\n{score}") for vm, path in tries])
            states = [(float(text or "-inf"), *one) for text, one in zip(told, tries)]
            for number, vm, path in states:
                print(f"{vm}: {' | '.join(path)}: {number:g}")
            beam = sorted(states, key=lambda state: state[0], reverse=True)[:keep]
            best = max(best, beam[0], key=lambda state: state[0])
            for vm in alive - {best[1], *(vm for _, vm, _ in beam)}:
                sandbox.remove(vm)
                alive.remove(vm)
        return best
    finally:
        for vm in alive - {best[1]}:
            sandbox.remove(vm)


def main(sandbox):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vm")
    parser.add_argument("candidates", nargs="+", help="commands for sh -c")
    parser.add_argument("--score", required=True, help="command that prints a number: more is better")
    parser.add_argument("--depth", type=int, default=2, help="steps")
    parser.add_argument("--keep", type=int, default=1, help="states that a step goes on from")
    number, vm, path = search(sandbox, **vars(parser.parse_args()))
    print(f"best: {vm}: {' | '.join(path)}: {number:g}")


if __name__ == "__main__":
    main(Sandbox())
