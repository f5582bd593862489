#!/usr/bin/env python3
"""Runs whose loss becomes non-finite: the good checkpoints are kept, and nothing that diverged is reported as a result."""
import json
import re
import shutil

import rig

DIVERGED = 6
# The first updates make the weights huge; later losses are not finite.
RUINOUS = ["optim.lr=1e18", "optim.min_lr=1e17", "optim.warmup_steps=0", "optim.grad_clip=0"]
# Not even the first loss is finite.
HOPELESS = ["model.init_std=3e38"]


class Divergence(rig.Runs):
    def skipped(self, run="run"):
        return [event["step"] for event in self.events("step", run) if event["skipped"]]

    def state(self, step, run="run"):
        return json.loads((self.step_folder(step, run) / "manifest.json").read_text())["state"]

    def assert_advice_trains(self, stderr, step, *sets, run="run"):
        """Requires that the message names this step's checkpoint, and that a run resumed from it has good losses."""
        advised = re.search(r"--resume ([^\s,]+)", stderr).group(1)
        self.assertEqual(advised, f"run/checkpoints/step-{step:08}")
        self.train(*sets, f"run.dir={run}", resume=advised)
        # ln(320) = 5.77 is the loss of a uniform guess.
        self.assertLess(max(event["loss"] for event in self.events("step", run)), 6)

    def test_skipped_steps_push_no_good_checkpoint_out(self, *more):
        sets = ["checkpoint.interval=1", "checkpoint.keep=2", "checkpoint.keep_best=false", "train.steps=30", *more]
        self.train(*sets, max_steps=6)
        self.assertEqual(self.saved_steps(), [5, 6])
        stderr = self.train(*sets, *RUINOUS, status=DIVERGED)
        self.assertGreater(len(self.skipped()), 8)
        self.assertEqual(self.skipped()[0], 8)
        self.assertEqual(self.saved_steps(), [6, 7])  # 7 is the last step with a finite loss, 6 the one before
        self.assertIn("--resume run/checkpoints/step-00000006", stderr)
        # With a larger limit of skipped steps nothing else is saved either; the run resumes from step 7, and advises
        # step 6.
        stderr = self.train(*sets, "train.max_skipped_steps=1000", *RUINOUS, status=DIVERGED)
        self.assertEqual(self.saved_steps(), [6, 7])
        self.assertIn("validation loss is not finite", stderr)
        self.assertIn("--resume run/checkpoints/step-00000006\n", stderr)
        # A run from step 6 diverges, too. Repeating its command would resume it, so the message advises a different
        # folder.
        stderr = self.train(*sets, *RUINOUS, resume="run/checkpoints/step-00000006", status=DIVERGED)
        self.assertIn("set a different run.dir", stderr)
        self.assert_advice_trains(stderr, 6, *sets, run="again")

    def test_where_the_proven_checkpoint_is_gone_the_newest_that_remains_is_advised(self):
        sets = ["checkpoint.interval=1", "checkpoint.keep=0", "train.steps=30"]
        self.train(*sets, max_steps=4)
        self.train(*sets, *RUINOUS, status=DIVERGED)
        self.assertEqual(self.state(5)["proven_step"], 4)
        shutil.rmtree(self.step_folder(4))  # the only checkpoint that records that step 3 is proven
        self.assert_advice_trains(self.train(*sets, *RUINOUS, status=DIVERGED), 2, *sets)

    def test_nor_do_they_with_saves_in_the_background(self):
        self.test_skipped_steps_push_no_good_checkpoint_out("checkpoint.async=true")

    def test_the_proven_checkpoint_outlives_finite_ones_of_exploded_weights(self):
        sets = ["checkpoint.interval=1", "checkpoint.keep=1", "checkpoint.keep_best=false", "train.steps=30",
                "optim.warmup_steps=0"]
        self.train(*sets, max_steps=3)
        self.train(*sets, "optim.lr=1", "optim.min_lr=1", "optim.grad_clip=0", max_steps=8)
        self.assertEqual(self.skipped(), [])
        self.assertGreater(min(event["loss"] for event in self.events("step")[4:]), 10)
        self.assertEqual(self.saved_steps(), [3, 11])
        self.assertEqual(self.state(11)["proven_step"], 3)
        self.assert_advice_trains(self.train(*sets, *RUINOUS, status=DIVERGED), 3, *sets)

    def test_a_save_that_is_requested_while_steps_are_skipped_takes_no_place(self):
        sets = ["checkpoint.interval=1", "checkpoint.keep=2", "checkpoint.keep_best=false", "train.steps=60"]
        self.train(*sets, max_steps=3)
        for _ in range(4):
            self.train(*sets, *RUINOUS, "train.max_skipped_steps=1000", max_steps=2)
        states = {step: self.state(step)["skipped_in_row"] for step in self.saved_steps()}
        self.assertEqual([step for step, skipped in states.items() if skipped > 0], [11])
        self.assertEqual(len([step for step, skipped in states.items() if skipped == 0]), 2)

    def test_a_run_in_pieces_ends_as_the_whole_one(self):
        sets = [*RUINOUS, "train.steps=20", "train.max_skipped_steps=5"]
        whole = self.train("run.dir=whole", *sets, status=DIVERGED)
        last = self.last_step("whole")
        self.assertLess(last, 20)
        for _ in range(last - 1):
            self.train(*sets, max_steps=1)
        pieces = self.train(*sets, max_steps=1, status=DIVERGED)
        self.assertEqual(self.last_step(), last)
        reported = re.compile(r"(step \d+: .* was skipped \(6 in a row, 5 allowed\)); lower")
        self.assertEqual(reported.search(whole).group(1), reported.search(pieces).group(1))

    def test_a_diverged_model_is_neither_best_nor_finished(self):
        self.train("checkpoint.interval=1", "checkpoint.keep=1", max_steps=3)  # step 3 is evaluated
        stderr = self.train("train.eval_interval=1", *RUINOUS, status=DIVERGED)
        self.assertIn("step 8: the validation loss is not finite; lower optim.lr", stderr)
        self.assertEqual(self.saved_steps(), [2, 3])  # step 3's finite loss proved step 2
        self.assertEqual(self.state(3)["best_step"], 3)
        # Stopped one step before its end, the run does not finish with a different learning rate either.
        self.train(*RUINOUS, "train.eval_interval=1", max_steps=4)
        self.assertEqual(self.saved_steps()[-1], 7)
        self.assertLess(self.state(7)["best_step"], 7)
        self.assertGreater(self.state(7)["best_step"], 0)
        self.train("optim.lr=1e-4", status=DIVERGED)
        self.assertNotIn(8, self.saved_steps())
        self.assertIn("resumed step 3", self.train(resume="run/checkpoints/step-00000003"))

    def test_a_run_without_a_single_update_has_failed(self):
        self.assertIn("every step was skipped", self.train(*HOPELESS, status=DIVERGED))
        self.assertEqual(self.saved_steps(), [])
        self.train(*HOPELESS, "run.dir=unvalidated", "data.val_fraction=0", status=DIVERGED)
        self.train(*HOPELESS, "run.dir=piece", max_steps=2)
        self.assertIn("every step was skipped", self.train(*HOPELESS, "run.dir=piece", status=DIVERGED))

    def test_a_last_step_that_was_skipped_is_no_end_without_validation(self):
        sets = [*RUINOUS, "data.val_fraction=0"]
        self.assertIn("the training loss is not finite", self.train(*sets, status=DIVERGED))
        self.assertEqual(self.events("end")[-1]["outcome"], "ended because training diverged")

    def test_evaluation_reports_that_the_loss_is_not_finite(self):
        self.train(*RUINOUS, max_steps=6)
        stdout = self.trainer("eval", "--checkpoint", "run", "--json", status=DIVERGED, stdout=True)
        document = json.loads(stdout)
        self.assertIsNone(document["loss"])
        self.assertIsNone(document["perplexity"])
        self.assertIn("weights are not finite", document["reason"])
        self.assertNotIn("diverged", document["reason"])  # an imported model may have such weights
        stderr = self.trainer("eval", "--checkpoint", "run", status=DIVERGED)
        self.assertIn("run/checkpoints/step-00000006: the loss is not finite", stderr)

    def test_no_text_comes_from_logits_that_are_not_finite(self):
        self.train(*RUINOUS, max_steps=6)
        (self.folder / "in.jsonl").write_text('{"prompt": "a"}\n')
        for source in (["--prompt", "a", "--json"], ["--prompts", "in.jsonl"]):
            self.assertIn("the logits are not finite", self.trainer("generate", "--checkpoint", "run", *source, status=DIVERGED))

    def test_ranks_agree(self):
        sets = ["parallel.transport=threads", "parallel.tensor=2", "run.threads=1"]
        self.train(*sets, *RUINOUS, status=DIVERGED)
        self.train(*sets, *HOPELESS, "run.dir=hopeless", status=DIVERGED)


if __name__ == "__main__":
    rig.main()
