#!/usr/bin/env python3
"""Load handling: workers are forked as work piles up, and go when there is none.

    forkyard run tiny --name p --warm 2
    seq 40 | sed 's/.*/sleep 0.1; echo &/' | examples/load.py p --most 4

Reads commands, a line each, and answers in their order. A worker takes a
fraction of a second to be there, so none need wait idle for load that may
come. (SnowFlock, section 2.1, figure 1c.)
"""

import argparse
import sys
import threading
from collections import deque
from concurrent.futures import Future

from forkyard_host import Forkyard

PATIENCE = 2  # A worker with nothing to do for so many seconds goes.
BACKLOG = 2  # Jobs that may wait for each worker before another is forked.


class Pool:
    """Clones of one VM, as many as the work is worth."""

    def __init__(self, parent, most):
        self.parent, self.most = parent, most
        self.jobs = deque()
        self.lock = threading.Lock()
        self.here = threading.Condition(self.lock)
        self.workers = 0
        self.peak = 0
        self.threads = []

    def submit(self, command):
        outcome = Future()
        with self.lock:
            self.jobs.append((command, outcome))
            self.here.notify()
            if self.workers < self.most and len(self.jobs) > self.workers * BACKLOG:
                self.workers += 1
                self.peak = max(self.peak, self.workers)
                thread = threading.Thread(target=self.work)
                self.threads.append(thread)
                thread.start()
        return outcome

    def work(self):
        try:
            with self.parent.fork()[0] as vm:
                while (job := self.next_job()) is not None:
                    command, outcome = job
                    try:
                        outcome.set_result(vm.exec("sh", "-c", command))
                    except Exception as error:
                        outcome.set_exception(error)
        except Exception as error:
            with self.lock:
                self.workers -= 1
                # Others do what waits, if there are others.
                given_up = [] if self.workers else [self.jobs.popleft() for _ in list(self.jobs)]
            for _, outcome in given_up:
                outcome.set_exception(error)

    def next_job(self):
        """The next job; none if this worker is to go."""
        with self.lock:
            if not self.jobs:
                self.here.wait(PATIENCE)
            if self.jobs:
                return self.jobs.popleft()
            # Under the lock: whoever comes next finds one worker less.
            self.workers -= 1
            return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vm")
    parser.add_argument("--most", type=int, default=8, help="workers at once")
    args = parser.parse_args()
    pool = Pool(Forkyard().vm(args.vm), args.most)
    outcomes = [pool.submit(line.strip()) for line in sys.stdin]
    for outcome in outcomes:
        print(outcome.result().text)
    print(f"{len(outcomes)} jobs, {pool.peak} workers at most", file=sys.stderr)
    for thread in pool.threads:
        thread.join()


main()
