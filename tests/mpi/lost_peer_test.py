#!/usr/bin/env python3
"""A rank is stopped or killed in the middle of all-reduces, of messages around a ring, of the list of a pipeline stage
(every_action: before each action of each list), between the counts and the rows of experts, or while keys and values go around a
ring: every other rank reports it in time and exits with status 7, also if the rank returns while they end. A suspended job
continues, although its ranks do so one after another.

usage: lost_peer_test.py PROGRAM RANKS stop|kill|return|suspend all_reduce|send|stages|every_action|experts|ring MPIRUN...
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

    def __init__(self, program, ranks, mpirun, options, timeout, operation="all_reduce", elements=100000, loss=()):
        self.ranks, self.mpirun, self.timeout = ranks, mpirun, timeout
        args = [program, str(timeout), operation, str(elements), *map(str, loss)]
        self.process = subprocess.Popen(mpirun + options + ["-np", str(ranks), *args],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.guard = threading.Timer(PATIENCE, self.process.kill)
        self.guard.start()
        self.output, self.pids, self.steps, self.left, self.lost_at = [], {}, {}, {}, None

    def lines(self):
        for line in self.process.stdout:
            self.output.append(line)
            if found := re.search(r"rank (\d+) is process (\d+)", line):
                self.pids[int(found.group(1))] = int(found.group(2))
            elif found := re.search(r"rank (\d+) is at step (\d+)", line):
                self.steps[int(found.group(1))] = int(found.group(2))
            elif "rank is lost" in line:
                self.lost_at = time.monotonic()
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


def lose(how, operation, program, ranks, mpirun, elements=100000, victim=None, action=None):
    """The last rank is lost at any time, or `victim` before an action of its list."""
    # Without --enable-recovery mpirun ends the other ranks when a rank is killed; with it, they continue.
    which = signal.SIGKILL if how == "kill" else signal.SIGSTOP
    run = Run(program, ranks, mpirun, ["--enable-recovery"] if how == "kill" else [], 3.0 if how != "return" else 1.0,
              operation, elements, [victim, action, int(which)] if victim is not None else [])
    victim, returned = ranks - 1 if victim is None else victim, False
    for _ in run.lines():
        if len(run.pids) == ranks and run.lost_at is None and action is None:
            run.signal(which, victim)
            run.lost_at = time.monotonic()
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
        of_stage = rf"stage {victim}, " if operation == "stages" else ""
        if rank != victim and not re.search(rf"rank {victim} \({of_stage}host \S+, process {run.pids[victim]}\) does not respond",
                                            message):
            problems.append(f"rank {rank} does not name rank {victim} and its process: {message}")
        waiting, waited = r"rank \d", f"rank {victim}"
        if of_stage:
            waiting, waited = r"rank (\d) \(stage \1\)", rf"rank {victim} \(stage {victim}\)"
        waits = rf"{waiting} has been waiting for {waited} for \S+ s in send along stage \(operation \d+ of link \d\)"
        if operation in ("experts", "ring"):
            name = "all_to_all along experts" if operation == "experts" else "shift along context"
            waits = name + r" \(operation \d+ of channel critical\) did not complete within 3 s"
        if operation != "all_reduce" and not re.search(waits, message):
            problems.append(f"rank {rank} does not name the operation: {message}")
        if at - run.lost_at > run.timeout + 5:
            problems.append(f"rank {rank} needed {at - run.lost_at:.1f} s")
    # MPICH's mpiexec reports the signal by which it ends remaining ranks: SIGKILL if one is stopped, else SIGHUP or SIGKILL.
    if how != "kill" and status not in ((7, signal.SIGKILL, signal.SIGHUP) if "mpiexec" in mpirun[0] else (7,)):
        problems.append(f"mpirun ended with {status}")
    run.require(problems)
    print(f"{len(run.left)} ranks left with 7 after {max(at for _, _, at in run.left.values()) - run.lost_at:.1f} s", flush=True)


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
    if operation == "every_action":  # of 1f1b with two micro-batches: F F B B, on the last stage FB FB
        for victim in range(ranks):
            for action in range(4 if victim < ranks - 1 else 2):
                lose(how, "stages", program, ranks, mpirun, victim=victim, action=action)
        return
    if operation == "experts":
        return lose(how, operation, program, ranks, mpirun, victim=ranks - 1, action=1)
    if operation == "ring":  # in its second step, forward and backward
        for action in (3, 2 * ranks + 1 + 3):
            lose(how, operation, program, ranks, mpirun, victim=ranks - 1, action=action)
        return
    # Messages of different sizes: sent at once, copied by the library, and read from the sender's memory.
    for elements in (2000, 100000, 3000000) if how == "return" else (100000,):
        lose(how, operation, program, ranks, mpirun, elements)


main()
