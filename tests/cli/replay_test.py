#!/usr/bin/env python3
"""Checks during a run: replays on other replicas, ranks that are slow, and replicas that must be equal."""
import rig

DIFFERENCE = 8
FAULT = 'debug.inject=["gradient:1:blocks.0.mlp.up.weight:5:20"]'


class Replays(rig.Runs):
    def replicas(self, count, *sets, transport="threads", **options):
        return self.train_on(count, f"parallel.data={count}", "train.global_batch=12", "train.micro_batch=1",
                             "run.threads=1", *sets, transport=transport, **options)

    def test_replays_change_no_bit(self):
        for count, transport in ((2, "threads"), (3, "mpi")):
            for run, every in (("off", 0), ("on", 2)):
                stderr = self.replicas(count, f"run.dir={run}{count}", f"debug.replay_every={every}",
                                       transport=transport)
                self.assertNotIn("replay", stderr)
            self.assertEqual(self.losses(f"on{count}"), self.losses(f"off{count}"))
            self.assertEqual(self.tensors(8, f"on{count}"), self.tensors(8, f"off{count}"))

    def test_a_fault_ends_the_run_and_verified_goes_back(self):
        for count, text in ((3, r"replica 1 computed different gradients of blocks\.0\.mlp\.up\.weight for the "
                                r"micro-batch of replica 1 .*2 of 3 replicas agree\): suspect rank 1 \(host "),
                            (2, r"each repeats its result: suspect ranks 0 or 1 \(host ")):
            run = f"run.dir=fault{count}"
            sets = (run, "debug.replay_every=4", "checkpoint.interval=2", "checkpoint.keep=1")
            self.replicas(count, *sets, max_steps=5)  # replays before steps 1 and 4
            self.assertEqual(self.saved_steps(f"fault{count}"), [4, 5])
            stderr = self.replicas(count, *sets, FAULT, status=DIFFERENCE)  # 6 and 8
            self.assertRegex(stderr, r"trainer: step 8: .*" + text)
            self.assertRegex(stderr, rf"agreed was before step 6; .*--resume \S*fault{count}/checkpoints/step-00000006")
            self.assertEqual(self.last_step(f"fault{count}"), 7)
            self.assertEqual(self.saved_steps(f"fault{count}"), [6])
            stderr = self.replicas(count, *sets, FAULT, "debug.replay_action=warn", resume="verified")  # 7 and 8
            self.assertIn("resumed step 6", stderr)
            self.assertRegex(stderr, r"warning.* step 8: .*" + text)
            self.assertEqual(self.last_step(f"fault{count}"), 8)

    def test_verified_needs_a_verified_checkpoint(self):
        stderr = self.train(resume="verified", status=5)
        self.assertIn("no checkpoint in run/checkpoints is verified; there is none", stderr)
        self.assertNotIn("replay", stderr)
        self.train(max_steps=2)
        self.assertIn("the newest is of step 2, and no replay agreed", self.train(resume="verified", status=5))

    def test_one_replica_repeats_its_own(self):
        self.assertIn("transient faults only", self.train("debug.replay_every=4"))
        self.assertIn("deterministic", self.train("debug.replay_every=4", "precision.deterministic=false", status=2))

    def test_a_first_replay_that_differs_switches_replays_off(self):
        stderr = self.replicas(2, "debug.replay_every=1", FAULT)
        self.assertRegex(stderr, r"step 1: debug.replay_every is switched off.*suspect ranks 0 or 1")
        self.assertEqual(self.last_step(), 8)

    def test_the_slow_one_of_two_ranks_is_named(self):
        # Rank 0 waits for the other one before it reads, which is not time of its own.
        stderr = self.replicas(2, "log.ranks_every=2", "train.steps=20", 'debug.inject=["slow:1:0.2"]')
        self.assertRegex(stderr, r"rank 1 \(host .*\) needed .*\(compute\)")
        self.assertNotRegex(stderr, r"rank 0 \(host .*needed")

    def test_a_slow_rank_is_named(self):
        stderr = self.replicas(3, "log.ranks_every=2", "train.steps=20", 'debug.inject=["slow:2:0.2"]')
        self.assertRegex(stderr, r"rank 2 \(host .*\) needed \d+\.\d+ x the median of all ranks in 8 of the last 8 "
                                 r"windows \(compute\); every step waits for it: about \d\d % of the time")
        self.assertNotRegex(stderr, r"rank [01] \(host .*needed")
        ranks = self.events("ranks")
        self.assertEqual([event["step"] for event in ranks], list(range(2, 21, 2)))
        self.assertEqual({event["slowest"] for event in ranks}, {2})
        for event in ranks:
            self.assertGreater(event["own_ms"][2], 200)
            self.assertLess(event["own_ms"][0], 200)
        self.trainer("report", "run")
        page = (self.folder / "run/report.html").read_text()
        self.assertIn("<h2>Ranks</h2>", page)
        csv = self.trainer("report", "run", "--csv", stdout=True).splitlines()
        column = csv[0].split(",").index("slowest_rank")
        self.assertEqual([line.split(",")[column] for line in csv[1:5]], ["", "2", "", "2"])


if __name__ == "__main__":
    rig.main()
