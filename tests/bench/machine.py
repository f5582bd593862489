"""Code shared by the CPU benchmarks: the CPU's class, its peak, rounds that are repeated on a noisy machine, and the
search for a Python that has PyTorch."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NOISE = 0.15  # a round is repeated if the peak before and after it differs by more
TORCH_FOLDER = ROOT / "build" / "torch-python"
# Newest first: the class, and the flag of /proc/cpuinfo that identifies it.
CLASSES = (("AMX", "amx_bf16"), ("AVX512-BF16", "avx512_bf16"), ("AVX-512", "avx512f"), ("AVX2", "avx2"))


def run(command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def run_with_peak(command):
    """Returns what the command prints, and its largest resident memory in bytes."""
    command = list(map(str, command))
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}\n{out}{log.read()}")
    return out, usage.ru_maxrss * 1024


def cpu():
    """Returns (class, flags that matter, model name) of this machine's CPU."""
    facts = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = set(facts.get("flags", "").split())
    found = [flag for _, flag in reversed(CLASSES) if flag in flags]
    return next((name for name, flag in CLASSES if flag in flags), "plain"), found, facts.get("model name", "unknown CPU")


class Peak:
    """The trainer's peak microbenchmark on this machine; `best` is the highest rate measured in this call, by compute
    type, in TFLOP/s. Percentages are relative to it."""

    def __init__(self, trainer, threads):
        self.trainer, self.threads, self.best, self.unit = trainer, threads, {}, {}

    def saw(self, compute, tflops):
        self.best[compute] = max(self.best.get(compute, 0), tflops)

    def look(self, compute):
        """Returns the current TFLOP/s: the median over 0.1 s, which shows disturbances that the best window hides."""
        peak = json.loads(run([self.trainer, "bench", "peak", "--compute", compute, "--threads", self.threads, "--json",
                               "--set", "run.device=cpu"]))["peak"]
        self.unit[compute] = peak["unit"]
        self.saw(compute, peak["tflops"])
        return peak["median_tflops"]

    def describe(self, computes):
        """Returns lines that describe the machine."""
        kind, flags, model = cpu()
        lines = [f"class of CPU: {kind} ({model}; {' '.join(flags) or 'none of the flags that matter'}), "
                 f"{self.threads} threads of {len(os.sched_getaffinity(0))} CPUs"]
        for compute in computes:
            self.look(compute)
        units = [f"{compute} by {self.unit[compute]}, {self.best[compute]:.3g} TFLOP/s" for compute in computes]
        return "\n".join([*lines, "units in use: " + "; ".join(units)])


class Rounds:
    """Rounds of measurements, each with a measurement of the peak before and after it."""

    def __init__(self, peak, count, tries):
        self.peak, self.count, self.tries, self.disturbed, self.repeated = peak, count, tries, 0, 0

    def each(self, compute, measure):
        """Calls measure() `count` times. If the peak changed meanwhile, the call is repeated; if it changed in all tries, the
        try with the smallest change is kept and counted in `disturbed`."""
        results, before = [], self.peak.look(compute)
        for _ in range(self.count):
            tried = []
            while len(tried) < self.tries and (not tried or tried[-1][0] > NOISE):
                result = measure()
                after = self.peak.look(compute)
                tried.append((abs(after - before) / max(after, before), len(tried), result))
                before = after
            change, _, result = min(tried)
            self.repeated += len(tried) - 1
            self.disturbed += change > NOISE
            results.append(result)
        return results

    def verdict(self):
        if not self.repeated and not self.disturbed:
            return "calm: the peak loop before and after every round was the same within 15 %"
        return (f"noisy: {self.repeated} measurements were repeated since the peak loop had changed by more than 15 %; "
                f"{self.disturbed} of the rounds kept are disturbed all the same")


# --- a program that works on request, so that a caller can alternate between programs

def start_served(command, **options):
    """Starts a process that answers each line "N" or "WORK N" on its stdin with the times of N more steps, as JSON."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def times_of(process, count, work=""):
    process.stdin.write(f"{work} {count}\n" if work else f"{count}\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def peak_of(process):
    """Returns the largest resident memory so far of a process that runs, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def close_served(process):
    process.stdin.close()
    process.wait()


# --- a Python that has PyTorch

def has_torch(python):
    try:
        find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"  # importing it takes seconds
        return subprocess.run([python, "-c", find], capture_output=True).returncode == 0
    except OSError:
        return False


def torch_python(given):
    """Returns an interpreter with PyTorch: the given one, this one, that of TRAINER_TORCH_PYTHON, or the one made
    before."""
    known = [given] if given else [sys.executable, os.environ.get("TRAINER_TORCH_PYTHON"), str(TORCH_FOLDER / "bin/python")]
    for python in filter(None, known):
        if has_torch(python):
            return python
    sys.exit(f"no PyTorch in {', '.join(filter(None, known))}: make a Python that has it with\n"
             f"    tests/bench/compare_torch.py --make-python\n"
             f"or name one by --python or TRAINER_TORCH_PYTHON")


def make_torch_python(folder):
    """Creates a virtual environment with the newest PyTorch that pip finds; pip's own settings choose the index."""
    python = folder / "bin" / "python"
    print(f"PyTorch goes into {folder}", file=sys.stderr)
    if subprocess.run([sys.executable, "-m", "venv", folder]).returncode != 0:
        sys.exit("no virtual environment could be made: on Debian and Ubuntu, install python3-venv")
    if subprocess.run([python, "-m", "pip", "install", "--upgrade", "torch", "numpy", "sentencepiece"]).returncode != 0:
        sys.exit("pip could not install PyTorch: see above")
    print(f"done: {python}" + ("" if folder == TORCH_FOLDER else "; name it by --python or TRAINER_TORCH_PYTHON"))
