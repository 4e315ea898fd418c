"""Items on clones that are there: as `vmfork map` shares them out, but nothing is forked. Run by `vmfork hosts`.

Every host does the first of its items once before, so that what it takes is there; that is not counted.
"""

import os
import queue
import subprocess
import sys
import threading
import time

command, items = sys.argv[1], sys.stdin.read().split()
with open(os.environ["FORKYARD_HOSTFILE"]) as hosts:
    hosts = [line.split()[0] for line in hosts]
outputs, left = {}, queue.Queue()


def do(host, item):
    words = [os.environ["FORKYARD_RSH"], host, command.replace("{}", item)]
    return subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout


def work(host):
    while True:
        try:
            number, item = left.get_nowait()
        except queue.Empty:
            return
        outputs[number] = do(host, item)


def at_once(target, words):
    threads = [threading.Thread(target=target, args=one) for one in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


at_once(do, zip(hosts, items))
for one in enumerate(items):
    left.put(one)
begun = time.monotonic()
at_once(work, [(host,) for host in hosts])
taken = time.monotonic() - begun
for number in range(len(items)):
    sys.stdout.buffer.write(outputs[number])
print(f"time {taken:.3f}", flush=True)
