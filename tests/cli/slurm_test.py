#!/usr/bin/env python3
"""Runs scripts/slurm_job.sh under a real Slurm: a controller and one node on this machine, started for this test. Exit
status 77 (skipped) if Slurm is not installed or this user may not run it."""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import rig

TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scancel", "scontrol", "squeue")
SLURM_CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldPort={ports[0]}
SlurmdPidFile={folder}/slurmd.pid
SlurmdPort={ports[1]}
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Slurm(rig.Runs):
    def setUp(self):
        super().setUp()
        self.cluster = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))  # socket paths must be short
        self.addCleanup(shutil.rmtree, self.cluster, ignore_errors=True)
        self.cluster.chmod(0o755)  # munged refuses a socket that other users cannot reach
        for name in ("spool", "state"):
            (self.cluster / name).mkdir()
        self.slurm = {**os.environ, "SLURM_CONF": str(self.cluster / "slurm.conf"), "TRAINER": str(rig.TRAINER)}
        host = socket.gethostname().split(".")[0]
        (self.cluster / "slurm.conf").write_text(SLURM_CONF.format(host=host, folder=self.cluster, ports=free_ports(2)))
        key = self.cluster / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.cluster}/munge.socket",
                    f"--pid-file={self.cluster}/munged.pid", f"--log-file={self.cluster}/munged.log",
                    f"--seed-file={self.cluster}/munge.seed")
        self.until(lambda: (self.cluster / "munge.socket").exists(), "munged")
        self.daemon("slurmctld", "-D", "-i")
        self.daemon("slurmd", "-D")
        self.until(lambda: "idle" in self.call("sinfo", "--noheader", "--format=%T", check=False), "an idle node")

    def daemon(self, *command):
        process = subprocess.Popen(command, env=self.slurm, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def end():
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.addCleanup(end)

    def call(self, *command, check=True):
        result = subprocess.run(command, cwd=self.folder if self.folder.exists() else None, env=self.slurm, capture_output=True, text=True, timeout=60)
        self.assertTrue(result.returncode == 0 or not check, f"{command}: {result.stderr}")
        return result.stdout

    def until(self, condition, what):
        limit = time.monotonic() + 90
        while not condition():
            logs = [path.read_text(errors="replace")[-1500:] for path in self.cluster.glob("*.log")]
            outputs = [path.read_text(errors="replace")[-1500:] for path in self.folder.glob("slurm-*.out")]
            self.assertLess(time.monotonic(), limit, "\n".join([what, *logs, *outputs]))
            time.sleep(0.1)

    def state(self, job):
        return self.call("squeue", "--noheader", "--format=%T", f"--jobs={job}", check=False).strip()

    def cancel(self, job):
        self.call("scancel", job, check=False)
        self.until(lambda: self.state(job) in ("", "CANCELLED"), "the end of the job")

    def test_a_job_saves_itself_is_requeued_and_resumes_bit_identically(self):
        sets = ["train.steps=100000", "train.eval_interval=0", "train.micro_batch=1", "run.threads=1"]
        words = [word for value in sets for word in ("--set", value)]
        script = pathlib.Path(__file__).resolve().parents[2] / "scripts/slurm_job.sh"
        job = re.search(r"\d+", self.call("sbatch", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=10", script,
                                          "--config", "config.toml", *words)).group()
        self.addCleanup(self.cancel, job)
        saved = []
        for _ in range(2):  # the second time after a resume
            last = saved[-1] if saved else 0
            self.until(lambda: self.last_step() >= last + 3, f"step {last + 3}")
            self.call("scancel", "--signal=TERM", job)
            self.until(lambda: self.state(job) == "PENDING", "the job in the queue again")
            saved.append(self.last_step())
            self.assertEqual(self.saved_steps()[-1], saved[-1], "a completed step was not saved")
            if len(saved) == 1:  # otherwise Slurm delays the restart by two minutes
                self.call("scontrol", "update", f"jobid={job}", "StartTime=now")
        self.cancel(job)
        starts = [event["data_replicas"] for event in self.events("start")]
        self.assertEqual(starts, [2, 2], "replicas in each allocation")
        self.train_on(2, "run.dir=whole", *sets, max_steps=saved[-1], transport="mpi")
        self.assert_same_run(saved[-1], "run", "whole")


if __name__ == "__main__":
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent or os.getuid() != 0:
        print("skipped: " + (f"not installed: {', '.join(absent)}" if absent else "Slurm's daemons need root here"))
        sys.exit(77)
    rig.main()
