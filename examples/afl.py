#!/usr/bin/env python3
"""A target for AFL++ that is reset by fork: each run is in a clone of a VM in which the target waits, warm.

    cc -static -O1 -fsanitize-coverage=trace-pc examples/fuzz.c examples/edges.c -o target
    forkyard run tiny --name p --max-clones 16
    forkyard cp target p:/bin/target && forkyard exec -d p -- /bin/target
    mkdir seeds && printf 'HELO a\\nAUTH a\\nNAME a\\n' >seeds/1
    export AFL_SKIP_BIN_CHECK=1
    afl-fuzz -i seeds -o found -t 60000 -- examples/afl.py p

AFL++ takes this for the fork server of a program that it has started. The coverage is the target's own, from edges.c.
"""

import argparse
import ctypes
import os
import signal
import socket
import struct
import sys

from forkyard_host import Forkyard

# File descriptors on which AFL++ asks a fork server, and is answered.
ASKED, TOLD = 198, 199
# In the guest: the map, and whether the target is still there.
AFTER = "cat /run/edges; pidof target >/dev/null"


def shared_map():
    """Address of the map that AFL++ reads after each run."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    address = libc.shmat(int(os.environ["__AFL_SHM_ID"]), None, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "cannot attach AFL's map")
    return address


def run(vm, port, message, edges):
    """Sends a test case to the target in a clone; the process ends as the target did."""
    with vm.connect(port) as sock:
        sock.sendall(message)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    after = vm.exec("sh", "-c", AFTER)
    ctypes.memmove(edges, after.stdout, len(after.stdout))
    if after.code:
        os.kill(os.getpid(), signal.SIGSEGV)


def serve(parent, port, batch):
    """Answers AFL++ until it goes away. A process of its own does each run, and may be killed if it takes too long."""
    edges, ready, used = shared_map(), [], []
    os.write(TOLD, bytes(4))
    try:
        while len(os.read(ASKED, 4)) == 4:
            if not ready:
                for vm in used:
                    vm.remove()
                used, ready = [], list(parent.fork(batch).vms)
            used.append(ready.pop())
            child = os.fork()
            if not child:
                os.lseek(0, 0, os.SEEK_SET)
                run(used[-1], port, os.read(0, 1 << 20), edges)
                os._exit(0)
            os.write(TOLD, struct.pack("i", child))
            os.write(TOLD, struct.pack("i", os.waitpid(child, 0)[1]))
    finally:
        for vm in used + ready:
            vm.remove()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=7000, help="of the target, in the guest (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="clones of a fork (%(default)s)")
    parser.add_argument("vm")
    args = parser.parse_args()
    if "__AFL_SHM_ID" not in os.environ:
        sys.exit("afl.py: AFL++ starts this (afl-fuzz … -- examples/afl.py VM); see --help")
    # AFL++ may kill what it has started at any time. A process that it does not know of removes the clones.
    if server := os.fork():
        os.waitpid(server, 0)
    else:
        os.setsid()
        serve(Forkyard().vm(args.vm), args.port, args.batch)


main()
