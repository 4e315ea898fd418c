#!/usr/bin/env python3
"""Sandbox: code nobody trusts runs in a clone of a warm VM, which is thrown away.

    forkyard run tiny --name p
    examples/sandbox.py p 'echo $((6*7))' 'rm -rf /etc' 'ls /etc | wc -l'

What one command does, not even the next one sees: each has a clone of its own,
made in a fraction of a second with everything the VM had loaded. (SnowFlock,
section 2.1, figure 1a.)
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from forkyard_host import Forkyard, ForkyardError


def judge(vm, command):
    """What a command said, in a VM that exists for it alone."""
    with vm:
        try:
            ran = vm.exec("sh", "-c", command, timeout=10)
        except ForkyardError as error:
            if error.kind != "timeout":
                raise
            return "took too long"
    return f"exit {ran.code}: {(ran.stdout + ran.stderr).decode(errors='replace').strip()}"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    name, *commands = sys.argv[1:]
    vms = Forkyard().vm(name).fork(len(commands))
    with ThreadPoolExecutor(len(commands)) as pool:
        for command, said in zip(commands, pool.map(judge, vms, commands)):
            print(f"{command!r}: {said}")


main()
