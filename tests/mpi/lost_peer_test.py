#!/usr/bin/env python3
"""A rank is stopped or killed in the middle of all-reduces, or of messages around a ring: every other rank reports it in
time and exits with status 7, also if the rank returns while they end. A suspended job continues, although its ranks do
so one after another.

usage: lost_peer_test.py PROGRAM RANKS stop|kill|return|suspend all_reduce|send MPIRUN...
"""
import os
import re
import signal
import subprocess
import sys
import threading
import time

PATIENCE = 40.0  # limit of a run in seconds, on a busy machine


class Run:
    """A run of the program; lines() reads what it prints, and notes the ranks' processes, steps and ends."""

    def __init__(self, program, ranks, mpirun, options, timeout, operation="all_reduce", elements=100000):
        self.ranks, self.mpirun, self.timeout = ranks, mpirun, timeout
        self.process = subprocess.Popen(mpirun + options + ["-np", str(ranks), program, str(timeout), operation, str(elements)],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.guard = threading.Timer(PATIENCE, self.process.kill)
        self.guard.start()
        self.output, self.pids, self.steps, self.left = [], {}, {}, {}

    def lines(self):
        for line in self.process.stdout:
            self.output.append(line)
            if found := re.search(r"rank (\d+) is process (\d+)", line):
                self.pids[int(found.group(1))] = int(found.group(2))
            elif found := re.search(r"rank (\d+) is at step (\d+)", line):
                self.steps[int(found.group(1))] = int(found.group(2))
            elif found := re.search(r"rank (\d+) leaves with (\d+): (.*)", line):
                self.left[int(found.group(1))] = (int(found.group(2)), found.group(3), time.monotonic())
            yield

    def signal(self, which, *ranks):
        for rank in ranks:
            os.kill(self.pids[rank], which)

    def status(self):
        status = self.process.wait()
        self.guard.cancel()
        return status

    def require(self, problems):
        if problems:
            self.process.kill()
            self.guard.cancel()
            sys.exit("\n".join(problems) + "\noutput:\n" + "".join(self.output))


def lose(how, operation, program, ranks, mpirun, elements=100000):
    # Without --enable-recovery mpirun ends the other ranks when a rank is killed; with it, they continue.
    run = Run(program, ranks, mpirun, ["--enable-recovery"] if how == "kill" else [], 3.0 if how != "return" else 1.0,
              operation, elements)
    victim, lost_at, returned = ranks - 1, None, False
    for _ in run.lines():
        if len(run.pids) == ranks and lost_at is None:
            run.signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP, victim)
            lost_at = time.monotonic()
        if how == "return" and run.left and not returned:  # the other ranks have freed the memory that they used
            run.signal(signal.SIGCONT, victim)
            returned = True
        if how == "kill" and len(run.left) == ranks - 1:
            break
    if how == "kill":
        run.process.terminate()
    status = run.status()

    problems = []
    for rank in range(ranks):
        if rank == victim and how != "return":
            continue
        if rank not in run.left:
            if rank != victim:  # mpirun may have ended the victim before it reported
                problems.append(f"rank {rank} did not leave")
            continue
        code, message, at = run.left[rank]
        if code != 7:
            problems.append(f"rank {rank} left with {code}")
        if rank != victim and not re.search(rf"rank {victim} \(host \S+, process {run.pids[victim]}\) does not respond", message):
            problems.append(f"rank {rank} does not name rank {victim} and its process: {message}")
        waits = rf"rank \d has been waiting for rank {victim} for \S+ s in send along stage \(operation \d+ of link \d\)"
        if operation == "send" and not re.search(waits, message):
            problems.append(f"rank {rank} does not name the operation: {message}")
        if at - lost_at > run.timeout + 5:
            problems.append(f"rank {rank} needed {at - lost_at:.1f} s")
    # MPICH's mpiexec reports the signal by which it ends remaining ranks: SIGKILL if one is stopped, else SIGHUP or SIGKILL.
    if how != "kill" and status not in ((7, signal.SIGKILL, signal.SIGHUP) if "mpiexec" in mpirun[0] else (7,)):
        problems.append(f"mpirun ended with {status}")
    run.require(problems)
    print(f"{len(run.left)} ranks left with 7 after {max(at for _, _, at in run.left.values()) - lost_at:.1f} s")


def suspend(program, ranks, mpirun):
    run = Run(program, ranks, mpirun, [], timeout=6.0)
    before = None

    def resume():  # all for longer than the timeout; then only the first rank, for longer than peers have to answer
        time.sleep(7)
        run.signal(signal.SIGCONT, 0)
        time.sleep(3)
        run.signal(signal.SIGCONT, *range(1, ranks))

    for _ in run.lines():
        if len(run.pids) == ranks and before is None:
            run.signal(signal.SIGSTOP, *range(ranks))
            before = dict(run.steps)
            threading.Thread(target=resume).start()
        if before is not None and all(run.steps.get(rank, 0) >= before.get(rank, 0) + 900 for rank in range(ranks)):
            break
    run.require([f"rank {rank} left: {message}" for rank, (_, message, _) in run.left.items()] +
                ([] if run.process.poll() is None else [f"mpirun ended with {run.process.poll()}"]))
    run.process.terminate()
    run.status()
    print(f"{ranks} ranks continued")


def main():
    program, ranks, how, operation, mpirun = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:]
    if how == "suspend":
        return suspend(program, ranks, mpirun)
    # Messages of different sizes: sent at once, copied by the library, and read from the sender's memory.
    for elements in (2000, 100000, 3000000) if how == "return" else (100000,):
        lose(how, operation, program, ranks, mpirun, elements)


main()
