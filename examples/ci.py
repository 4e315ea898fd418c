#!/usr/bin/env python3
"""A CI runner: a VM with a checkout and a warm build cache is forked for each job.

    forkyard run debian --name p --memory 512          # clone and build in it, once
    examples/ci.py p jobs.toml --workdir /src --out results

Jobs are tables of a TOML file, all but `run` optional; each has a clone of its own, which begins where the VM is now:

    [unit]
    run = "make -j2 check"        # for sh -c, in the checkout
    timeout = 600                 # seconds
    artefacts = "build/reports"   # a file or folder, brought home to results/unit
    env = { CI = "1" }

What each printed comes in the order of the file, both streams as they came, then its exit code, 124 if it took too long. Exits with
1 if a job failed. Nothing of a job is in the VM, or in another job.
"""

import argparse
import contextlib
import pathlib
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

from forkyard_host import Forkyard, ForkyardError


def perform(vm, name, job, workdir, out):
    """Runs a job in a clone that is there for it alone: its exit code, what it printed, and seconds."""
    begun, said, code = time.monotonic(), [], 124
    with vm:
        try:
            with vm.start("sh", "-c", job["run"], env=job.get("env"), timeout=job.get("timeout", 3600), workdir=workdir) as process:
                said += (data for _, data in process)
                code = process.code
        except ForkyardError as error:
            said.append(f"{error}\n".encode())
            if error.kind != "timeout":
                code = 125
        if "artefacts" in job:
            try:
                out.mkdir(parents=True, exist_ok=True)
                subprocess.run(["rm", "-rf", "--", out / name], check=True)  # An earlier run's.
                vm.files.get(str(pathlib.PurePosixPath(workdir, job["artefacts"])), out / name)
            except (ForkyardError, OSError) as error:
                said.append(f"no artefacts: {error}\n".encode())
                code = code or 125
    return code, b"".join(said), time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vm")
    parser.add_argument("jobs", type=argparse.FileType("rb"), help="a TOML file; - is standard input")
    parser.add_argument("--workdir", default="/src", help="the checkout, in the VM (%(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default="results", help="where artefacts go (%(default)s)")
    args = parser.parse_args()
    jobs, failed = tomllib.load(args.jobs), []
    if not jobs:
        parser.error(f"no job in {args.jobs.name}: each is a table with a `run`")
    forked = Forkyard().vm(args.vm).fork(len(jobs))
    with ThreadPoolExecutor(len(jobs)) as pool, contextlib.ExitStack() as clones:  # Interrupted, clones go first.
        for clone in forked.vms:
            clones.enter_context(clone)
        begun = [pool.submit(perform, vm, *it, args.workdir, args.out) for vm, it in zip(forked, jobs.items())]
        for name, job in zip(jobs, begun):
            code, said, seconds = job.result()
            print(f"--- {name}", said.decode(errors="replace").rstrip("\n"), sep="\n", flush=True)
            print(f"--- {name}: exit {code} after {seconds:.1f} s", flush=True)
            failed += [name] if code else []
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


main()
