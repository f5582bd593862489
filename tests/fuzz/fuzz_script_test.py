#!/usr/bin/env python3
"""scripts/fuzz.py, with programs in place of fuzzers that print what libFuzzer prints."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CALM = """INFO: seed corpus: files: 7 min: 2b max: 913b total: 2011b rss: 40Mb
#8	INITED cov: 310 ft: 512 corp: 7/2011b exec/s: 0 rss: 41Mb
#4096	pulse  cov: 1290 ft: 4099 corp: 300/20Kb lim: 913 exec/s: 2048 rss: 60Mb
#5000	DONE   cov: 1301 ft: 4101 corp: 301/20Kb lim: 913 exec/s: 2500 rss: 61Mb
stat::number_of_executed_units: 5000
stat::average_exec_per_sec:     2500
stat::new_units_added:          294
"""
# The same for a run that a finding ends, without the final counts, which are not always printed.
FOUND = """#8	INITED cov: 310 ft: 512 corp: 7/2011b exec/s: 0 rss: 41Mb
#640	NEW    cov: 411 ft: 600 corp: 9/2100b lim: 20 exec/s: 0 rss: 41Mb L: 20/900 MS: 1 ShuffleBytes-
==17==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1 at pc 0x2
SUMMARY: AddressSanitizer: heap-buffer-overflow reader.cpp:12 in read
artifact_prefix='X'; Test unit written to {prefix}crash-0123
"""


class Fuzz(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainer-fuzz-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def stand_in(self, target, *endings):
        """Creates a program whose n-th call prints the n-th text and exits with its status (further calls: the last one)."""
        program = self.folder / f"fuzz_{target}"
        program.write_text(f"""#!{sys.executable}
import pathlib, sys
calls = pathlib.Path(__file__ + ".calls")
before = calls.read_text().splitlines() if calls.exists() else []
calls.write_text("\\n".join(before + [" ".join(sys.argv[1:])]) + "\\n")
text, status = {list(endings)!r}[min(len(before), {len(endings) - 1})]
prefix = [word for word in sys.argv if word.startswith("-artifact_prefix=")][0].partition("=")[2]
sys.stderr.write(text.replace("{{prefix}}", prefix))
sys.exit(status)
""")
        program.chmod(0o755)

    def calls(self, target):
        return (self.folder / f"fuzz_{target}.calls").read_text().splitlines()

    def run_script(self, *arguments, status):
        result = subprocess.run([ROOT / "scripts/fuzz.py", "--no-build", "--build", self.folder, *arguments],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        return result

    def test_counts_of_a_calm_run_are_in_the_table(self):
        self.stand_in("hf_json", (CALM, 0))
        printed = self.run_script("--seconds", "9", "hf_json", status=0).stdout
        self.assertRegex(printed, r"(?m)^\| hf_json \| 5000 \| \d+ \| \d+ \| 1301 \| 294 \| 0 \|$")
        [call] = self.calls("hf_json")
        for word in ("-max_total_time=9", "-rss_limit_mb=2048", f"-dict={ROOT}/tests/fuzz/hf_json.dict"):
            self.assertIn(word, call.split())
        # New inputs go to the first folder.
        self.assertEqual(call.split()[-2:], [f"{self.folder.resolve()}/inputs/hf_json", f"{ROOT}/tests/fuzz/corpus/hf_json"])
        self.assertTrue((self.folder / "inputs/hf_json").is_dir())

    def test_a_target_goes_on_after_a_finding(self):
        self.stand_in("questions", (FOUND, 77), (CALM, 0))
        printed = self.run_script("--seconds", "9", "questions", status=1).stdout
        self.assertEqual(len(self.calls("questions")), 2)
        self.assertRegex(printed, r"(?m)^\| questions \| 5640 \| \d+ \| \d+ \| 1301 \| 294 \| 1 \|$")
        self.assertIn(f"questions: {self.folder.resolve()}/inputs/found/questions-crash-0123: "
                      "AddressSanitizer: heap-buffer-overflow reader.cpp:12 in read", printed)

    def test_a_target_that_fails_again_and_again_is_left(self):
        self.stand_in("jsonl", (FOUND, 77))
        printed = self.run_script("--seconds", "50", "jsonl", status=1).stdout
        self.assertEqual(len(self.calls("jsonl")), 10)
        self.assertRegex(printed, r"(?m)^\| jsonl \| 6400 \|.* 10 \|$")

    def test_what_cannot_run_is_reported_together_with_the_others(self):
        self.stand_in("set", ("no such option\n", 1))
        self.stand_in("shard", (CALM, 0))
        result = self.run_script("--jobs", "3", "set", "shard", "tokens", status=2)
        self.assertIn("| shard | 5000 |", result.stdout)
        self.assertIn("fuzz_set ended with status 1", result.stderr)
        self.assertIn("no such option", result.stderr)
        self.assertIn("fuzz_tokens: No such file or directory; build it first", result.stderr)

    def test_mistakes_are_reported(self):
        self.assertIn("there is no target tokenz; there are bpe_files, config,", self.run_script("tokenz", status=2).stderr)
        self.assertIn("--seconds: at least 1", self.run_script("--seconds", "0", status=2).stderr)


if __name__ == "__main__":
    unittest.main()
