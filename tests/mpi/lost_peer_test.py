#!/usr/bin/env python3
"""A rank is stopped or killed in the middle of all-reduces: every other rank reports it in time and exits with status 7.

usage: lost_peer_test.py PROGRAM RANKS stop|kill MPIRUN...
"""
import os
import re
import signal
import subprocess
import sys
import threading
import time

TIMEOUT = 3.0  # timeout of an operation in seconds, passed to the program
PATIENCE = 40.0  # limit of the whole test in seconds, on a busy machine


def main():
    program, ranks, how, mpirun = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    # Without --enable-recovery mpirun ends the other ranks when a rank is killed; with it, they continue.
    recovery = ["--enable-recovery"] if how == "kill" else []
    run = subprocess.Popen(mpirun + recovery + ["-np", str(ranks), program, str(TIMEOUT)], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    guard = threading.Timer(PATIENCE, run.kill)
    guard.start()
    lines, processes, lost_at, left = [], {}, None, {}
    victim = ranks - 1
    for line in run.stdout:
        lines.append(line)
        started = re.search(r"rank (\d+) is process (\d+)", line)
        if started:
            processes[int(started.group(1))] = int(started.group(2))
            if len(processes) == ranks and lost_at is None:
                os.kill(processes[victim], signal.SIGSTOP if how == "stop" else signal.SIGKILL)
                lost_at = time.monotonic()
        ended = re.search(r"rank (\d+) leaves with (\d+): (.*)", line)
        if ended and int(ended.group(1)) != victim:
            left[int(ended.group(1))] = (int(ended.group(2)), ended.group(3), time.monotonic())
        if len(left) == ranks - 1 and how == "kill":
            break
    if how == "kill":
        run.terminate()
    status = run.wait()
    guard.cancel()

    problems = []
    for rank in range(ranks):
        if rank == victim:
            continue
        if rank not in left:
            problems.append(f"rank {rank} did not leave")
            continue
        code, message, at = left[rank]
        if code != 7:
            problems.append(f"rank {rank} left with {code}")
        if not re.search(rf"rank {victim} \(host \S+, process {processes[victim]}\) does not respond", message):
            problems.append(f"rank {rank} does not name rank {victim} and its process: {message}")
        if at - lost_at > TIMEOUT + 5:
            problems.append(f"rank {rank} needed {at - lost_at:.1f} s")
    # MPICH's mpiexec reports the signal by which it ends the stopped rank.
    if how == "stop" and status not in ((7, 9) if "mpiexec" in mpirun[0] else (7,)):
        problems.append(f"mpirun ended with {status}")
    if problems:
        sys.exit("\n".join(problems) + "\noutput:\n" + "".join(lines))
    print(f"{ranks - 1} ranks left with 7 after {max(at for _, _, at in left.values()) - lost_at:.1f} s")


main()
