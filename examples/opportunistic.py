#!/usr/bin/env python3
"""Opportunistic job: takes what the host has to spare, and gives it back.

    forkyard run tiny --name p --max-clones 8
    examples/opportunistic.py p --parts 12

Before each step as many parts are begun as there are idle processors; what the
host refuses is tried again later, and a part whose clone was taken away (with
`forkyard rm`, say) is done by another. (SnowFlock, section 2.1, figure 1d.)
"""

import argparse
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from forkyard_host import Forkyard, ForkyardError

PART = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo part {part} on $(hostname)"


def idle_processors(ours):
    """Processors nobody uses, but one at least: a host that is busy only with us is ours."""
    return max(1 - ours, round((os.cpu_count() or 1) - os.getloadavg()[0]))


def do(vm, part):
    """A part's output; none if its clone is gone."""
    try:
        with vm:
            return vm.exec("sh", "-c", PART.format(part=part), check=True).text
    except ForkyardError as error:
        print(f"part {part} again: {error}", file=sys.stderr)
        return None


def fork(parent, wanted):
    """So many clones, or fewer."""
    try:
        forked = parent.fork(wanted)
    except ForkyardError as error:
        if error.kind != "exhausted":
            raise
        return []
    return forked.vms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vm")
    parser.add_argument("--parts", type=int, default=8)
    args = parser.parse_args()
    parent = Forkyard().vm(args.vm)
    left, under_way = list(range(1, args.parts + 1)), {}
    with ThreadPoolExecutor(args.parts) as pool:
        while left or under_way:
            spare = min(len(left), idle_processors(len(under_way)))
            for vm in fork(parent, spare) if spare > 0 else []:
                part = left.pop(0)
                under_way[pool.submit(do, vm, part)] = part
            if not under_way:
                time.sleep(1)
                continue
            done, _ = wait(under_way, timeout=1, return_when=FIRST_COMPLETED)
            for one in done:
                part, said = under_way.pop(one), one.result()
                if said is None:
                    left.append(part)
                else:
                    print(said)


main()
