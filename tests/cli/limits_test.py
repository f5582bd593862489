#!/usr/bin/env python3
"""Limits of users and containers: if the system refuses threads or memory, the error says so and is not reported as a bug."""
import os
import resource
import shutil
import subprocess
import unittest

import rig

DOES_NOT_FIT = 3
NOBODY = 65534


class Limits(rig.Runs):
    def limited(self, args, before):
        return subprocess.run([rig.TRAINER, *args], cwd=self.folder, capture_output=True, text=True, errors="replace",
                              timeout=rig.TIMEOUT_SECONDS, preexec_fn=before)

    @unittest.skipIf(os.environ.get("SANITIZED"), "sanitizers need threads and address space of their own")
    def test_threads_that_cannot_be_created(self):
        """Runs as a user with a limit of processes, which does not apply to root."""
        if os.geteuid() != 0:
            self.skipTest("another user's limit can be set by root only")
        self.folder.chmod(0o777)
        for path in self.folder.rglob("*"):
            path.chmod(0o777)
        for parent in self.folder.parents:
            if not parent.stat().st_mode & 1 and parent != parent.parent:
                parent.chmod(0o755)
        running = sum(1 for pid in os.listdir("/proc") if pid.isdigit() and self.owner(pid) == NOBODY)

        def few(threads):
            def before():
                resource.setrlimit(resource.RLIMIT_NPROC, (running + threads, running + threads))
                os.setgroups([])
                os.setresuid(NOBODY, NOBODY, NOBODY)
            return before
        cases = [(["--config", "config.toml", "--set", "run.threads=64"], "the system cannot create another thread"),
                 (["bench", "peak", "--threads", "64"], "of 64 (run.threads): the system cannot create another thread"),
                 (["--config", "config.toml", "--set", "parallel.transport=threads", "parallel.data=40", "train.global_batch=80",
                   "run.threads=1"], "the system cannot create another thread"),
                 (["--config", "config.toml", "--set", "run.threads=64", 'data.train=["text.txt"]'],
                  "the system cannot create another thread")]
        for args, expected in cases:
            result = self.limited(args, few(20))
            self.assertEqual(result.returncode, DOES_NOT_FIT, f"{args}: {result.stderr}")
            self.assertIn(expected, result.stderr)
            self.assertIn("ulimit -u", result.stderr)
            self.assertNotIn("bug", result.stderr)
        self.assertEqual(self.limited(["--config", "config.toml", "--set", "run.dir=fits"], few(40)).returncode, 0)

    @staticmethod
    def owner(pid):
        try:
            return os.stat(f"/proc/{pid}").st_uid
        except FileNotFoundError:
            return None

    @unittest.skipIf(os.environ.get("SANITIZED"), "sanitizers need address space of their own")
    def test_memory_that_is_not_given(self):
        """Whatever the limit of the address space, the run succeeds or reports that it is out of memory."""
        seen = set()
        for megabytes in range(60, 3000, 20):  # how much the libraries need depends on the build
            def before():
                resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if self.limited(["--version"], before).returncode != 0:
                continue  # libraries do not fit either; some of them crash then
            result = self.limited(["--config", "config.toml", "--set", f"run.dir=run{megabytes}", "run.threads=8"], before)
            self.assertIn(result.returncode, (0, DOES_NOT_FIT), f"{megabytes} MB: {result.stderr}")
            self.assertNotIn("bug", result.stderr)
            seen.add(result.returncode)
            if result.returncode == 0:
                break
        self.assertEqual(seen, {0, DOES_NOT_FIT}, "the limits tried reach from too little to enough")

    def in_group(self, line, files, *sets):
        """Trains in a mount namespace in which these are the files of the process's control groups."""
        script = ("mount -t tmpfs none /sys/fs/cgroup && " +
                  "".join(f"mkdir -p $(dirname {path}) && echo {text} > {path} && " for path, text in files.items()) +
                  "mount --bind cgroup /proc/$$/cgroup && exec \"$0\" \"$@\"")
        (self.folder / "cgroup").write_text(line + "\n")
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        return subprocess.run(["unshare", "-m", "sh", "-c", script, rig.TRAINER, "--config", "config.toml", "--max-steps", "1",
                               "--set", *sets], cwd=self.folder, capture_output=True, text=True, timeout=rig.TIMEOUT_SECONDS)

    def test_limits_of_the_processes_own_control_groups_count(self):
        """The files are read in unit_base; here, that a run obeys them."""
        if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/sys/fs/cgroup"], capture_output=True).returncode != 0:
            self.skipTest("this user may not mount a file system")
        large = ("model.d_model=512", "model.n_layer=4", "train.micro_batch=4")  # about 200 MiB
        job, group = "/sys/fs/cgroup/slurm.scope/job_7", "0::/slurm.scope/job_7/step_0/user/task_0"
        memory = {job + "/memory.max": 50 << 20, job + "/memory.current": 1 << 20}
        result = self.in_group(group, memory, *large)
        self.assertEqual(result.returncode, DOES_NOT_FIT, result.stderr)
        self.assertRegex(result.stderr, r"only 49(\.0)? MiB is available \(the memory that the cgroup of this job or container leaves\)")
        result = self.in_group("4:memory:/docker/abc", {"/sys/fs/cgroup/memory/memory.limit_in_bytes": 50 << 20}, *large)
        self.assertEqual(result.returncode, DOES_NOT_FIT, result.stderr)
        self.assertEqual(self.in_group(group, {job + "/memory.max": "max"}, *large).returncode, 0)
        for quota, threads in (("'50000 100000'", 1), ("max", len(os.sched_getaffinity(0)))):
            result = self.in_group(group, {job + "/cpu.max": quota}, "run.threads=0")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, rf"1 rank with {threads} threads?\b")
        result = self.in_group(group, {job + "/cpu.max": "'50000 100000'"}, "run.threads=2")
        self.assertIn("run.threads = 2 exceeds the CPU quota of this container or job, 1 core", result.stderr)

    def test_more_threads_than_cores_are_reported(self):
        reported = "run.threads = 1000 exceeds this machine's"
        self.assertIn(reported, self.train("run.threads=1000", max_steps=1))
        self.assertNotIn("exceeds this machine's", self.train("run.threads=1", "run.dir=one", max_steps=1))

    def test_memory_of_ranks_that_are_threads_is_that_of_the_process(self):
        if os.environ.get("SANITIZED"):
            self.skipTest("memory is not counted under sanitizers")
        # So large that messages use the ranks' buffers, which are part of the prediction but take memory once they are used.
        model = ["model.n_layer=4", "model.d_model=384", "model.n_head=4", "model.seq_len=64", "run.threads=1"]
        self.train("run.dir=four", *model, "train.global_batch=8", "parallel.transport=threads", "parallel.data=4")
        ratio = self.events("end", "four")[-1]["ratio"]["memory_bytes"]
        self.assertGreaterEqual(ratio, 0.80)
        self.assertLessEqual(ratio, 1.10)


if __name__ == "__main__":
    rig.main()
