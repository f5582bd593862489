#!/usr/bin/env python3
"""Logs for other programs, TensorBoard's event files and traces of steps, agree with metrics.jsonl."""
import collections
import json
import struct
import time
import unittest

import rig

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None


def crc32c(data):
    """Computes CRC-32C bit by bit from its polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


def records(data):
    """Yields the messages of an event file; requires correct checksums and no trailing bytes."""
    while data:
        length, crc = struct.unpack("<QI", data[:12])
        assert masked(data[:8]) == crc, "checksum of a length"
        message = data[12:12 + length]
        assert struct.unpack("<I", data[12 + length:16 + length])[0] == masked(message), "checksum of a message"
        yield message
        data = data[16 + length:]


def fields(message):
    """Yields (number, value) of the fields of a protocol buffer message."""
    def varint():
        nonlocal message
        value = shift = 0
        while True:
            byte, message = message[0], message[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while message:
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 2: None, 5: 4}[key & 7]
        size = varint() if size is None else size
        value, message = message[:size], message[size:]
        yield key >> 3, struct.unpack({4: "<f", 8: "<d"}[size], value)[0] if key & 7 != 2 else value


def scalars(files):
    """Returns {tag: {step: value}} of event files in their order, and the steps at which runs started."""
    found, starts = collections.defaultdict(dict), []
    for file in files:
        for message in records(file.read_bytes()):
            event = dict(fields(message))
            if 7 in event:  # SessionLog: a restart
                starts.append(event[2])
                for values in found.values():
                    for step in [step for step in values if step >= event[2]]:
                        del values[step]
            for number, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                if number == 1 and 2 in value:
                    found[value[1].decode()][event.get(2, 0)] = value[2]
    return found, starts


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]

PHASES = {"data": "data", "forward": "forward", "backward": "backward", "update": "optimizer"}  # by the name in the log


class Logs(rig.Runs):
    def event_files(self, run="run"):
        return sorted((self.folder / run).glob("events.out.tfevents.*"))

    def check_scalars(self, found, run="run"):
        """Requires each number of metrics.jsonl, and no other steps."""
        steps, evals = self.events("step", run), self.events("eval", run)
        names = {"loss/train": "loss", "optim/lr": "lr", "optim/grad_norm": "grad_norm", "speed/step_ms": "step_ms",
                 "speed/tokens_per_s": "tokens_per_s", "speed/mfu": "mfu", "data/tokens": "tokens", "data/epoch": "epoch"}
        for tag, name in names.items():
            self.assertEqual(found[tag], {e["step"]: single(e[name]) for e in steps}, tag)
        for phase in steps[0]["phase_ms"]:
            self.assertEqual(found["time_ms/" + phase], {e["step"]: single(e["phase_ms"][phase]) for e in steps})
        for category in steps[-1]["memory_bytes"]:
            self.assertIn("memory_bytes/" + category, found)
        self.assertEqual(found["loss/validation"], {e["step"]: single(e["loss"]) for e in evals})
        self.assertEqual(found["validation/perplexity"], {e["step"]: single(e["perplexity"]) for e in evals})

    def test_event_files_hold_the_numbers_of_the_log(self):
        self.train("log.tensorboard=true")
        found, starts = scalars(self.event_files())
        self.assertEqual(starts, [1])
        self.check_scalars(found)

    def test_a_resumed_run_replaces_the_steps_it_repeats(self):
        self.train("log.tensorboard=true", "checkpoint.interval=3", max_steps=5)
        for folder in self.step_folders():
            if folder.name > "step-00000003":
                rig.shutil.rmtree(folder)
        self.train("log.tensorboard=true", "checkpoint.interval=3")
        self.assertEqual(len(self.event_files()), 2)
        found, starts = scalars(self.event_files())
        self.assertEqual(starts, [1, 4])
        self.check_scalars(found)

    @unittest.skipIf(EventAccumulator is None, "Python's tensorboard is not installed (pip install tensorboard)")
    def test_tensorboard_reads_them(self):
        self.train("log.tensorboard=true", "train.sample_prompt=a", "train.sample_tokens=4", "checkpoint.interval=3", max_steps=5)
        self.train("log.tensorboard=true", "train.sample_prompt=a", "train.sample_tokens=4")
        board = EventAccumulator(str(self.folder / "run"), size_guidance={"tensors": 0, "scalars": 0})
        board.Reload()
        found = {tag: {each.step: each.value for each in board.Scalars(tag)} for tag in board.Tags()["scalars"]}
        self.check_scalars(found)
        self.assertEqual(set(board.Tags()["tensors"]), {"config", "samples"})
        self.assertIn(b"[model]", board.Tensors("config")[0].tensor_proto.string_val[0])

    def test_without_the_key_there_are_none(self):
        self.train(max_steps=1)
        self.assertEqual(self.event_files() + list((self.folder / "run").glob("trace.json")), [])

    # --- traces

    def trace(self, run="run"):
        """Returns {(rank, track): spans by start time}; spans are (begin, end, name, args) in microseconds."""
        events = json.loads((self.folder / run / "trace.json").read_text())["traceEvents"]
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        tracks = collections.defaultdict(list)
        for e in events:
            if e["ph"] == "X":
                tracks[e["pid"], names[e["pid"], e["tid"]]].append((e["ts"], e["ts"] + e["dur"], e["name"], e.get("args", {})))
        for spans in tracks.values():
            spans.sort(key=lambda span: (span[0], -span[1]))
        return tracks

    def check_nesting(self, spans):
        """Requires that every span is inside its parent; returns the leaves."""
        above, leaves = [], []
        for span in spans:
            while above and span[0] >= above[-1][1] - 5e-4:
                above.pop()
            if above:
                self.assertLessEqual(span[1], above[-1][1] + 5e-4, f"{span} reaches out of {above[-1]}")
                if leaves and leaves[-1] is above[-1]:
                    leaves.pop()
            above.append(span)
            leaves.append(span)
        return leaves

    def check_steps(self, tracks, rank, first, last, run="run"):
        """Requires the requested steps, each as long as the sum of its phases and as metrics.jsonl reports."""
        compute = tracks[rank, "compute"]
        self.check_nesting(compute)
        steps = {span[2]: span for span in compute if span[2].startswith("step ")}
        self.assertEqual(list(steps), [f"step {step}" for step in range(first, last + 1)])
        logged = {e["step"]: e for e in self.events("step", run)}
        for step in range(first, last + 1):
            begin, end, _, _ = steps[f"step {step}"]
            inside = [span for span in compute if begin <= span[0] and span[1] <= end]
            phases = [span for span in inside if span[2] in PHASES]
            self.assertAlmostEqual(sum(span[1] - span[0] for span in phases), end - begin, delta=0.02 * (end - begin))
            if rank == 0:
                self.assertAlmostEqual((end - begin) / 1e3, logged[step]["step_ms"], delta=0.05 * logged[step]["step_ms"] + 0.5)
                for phase in {span[2] for span in phases}:
                    mine = sum(span[1] - span[0] for span in phases if span[2] == phase) / 1e3
                    self.assertAlmostEqual(mine, logged[step]["phase_ms"][PHASES[phase]], delta=1e-3 + 1e-6 * mine)

    def test_a_trace_has_the_requested_steps(self):
        self.train("log.trace=[3, 4]", "train.eval_interval=3")
        tracks = self.trace()
        self.assertEqual(sorted(track for _, track in tracks), ["compute", "input"])
        self.check_steps(tracks, 0, 3, 4)
        compute = tracks[0, "compute"]
        names = collections.Counter(span[2] for span in compute)
        # Two steps of two micro-steps on two layers, forward and backward; the evaluation in between is traced too.
        self.assertEqual((names["layer 0"], names["layer 1"]), (8, 8))
        self.assertEqual((names["forward"], names["update"], names["evaluation"]), (4, 2, 1))
        self.assertEqual(len(tracks[0, "input"]), 4)
        for name in ("gemm", "attention", "norm", "embedding", "loss"):
            self.assertGreater(names[name], 0, name)

    def test_operators_fill_the_steps(self):
        """In a model that is not tiny, the time between operators is at most 2 % of a step on an otherwise idle
        machine."""
        self.train("log.trace=[3, 6]", "model.d_model=384", "model.seq_len=128", "model.dropout=0", "train.micro_batch=4",
                   "model.n_layer=4", max_steps=6)
        compute = self.trace()[0, "compute"]
        leaves = self.check_nesting(compute)
        operators = {"gemm", "attention", "norm", "activation", "rope", "embedding", "loss", "elementwise", "column_sum", "pack",
                     "grad_norm", "optimizer"}
        shares = []
        for step in range(3, 7):
            begin, end = next(span[:2] for span in compute if span[2] == f"step {step}")
            inside = [span for span in leaves if begin <= span[0] and span[1] <= end and span[2] in operators]
            covered = sum(span[1] - span[0] for span in inside)
            self.assertLessEqual(covered, end - begin)
            shares.append(covered / (end - begin))
        self.assertGreater(min(shares), 0.9, shares)
        self.assertGreater(max(shares), 0.98, shares)

    def test_ranks_and_axes_have_lanes(self):
        for transport in ("threads", "mpi"):
            with self.subTest(transport=transport):
                run = "run." + transport
                self.train_on(4, f"run.dir={run}", "parallel.tensor=2", "parallel.data=2", "log.trace=[2, 3]", "run.threads=1",
                              "model.vocab_multiple=64", max_steps=4, transport=transport)
                tracks = self.trace(run)
                self.assertEqual({rank for rank, _ in tracks}, {0, 1, 2, 3})
                for rank in range(4):
                    self.check_steps(tracks, rank, 2, 3, run)
                    for axis in ("tensor", "data"):
                        self.check_axis(tracks, rank, axis, run)

    def check_axis(self, tracks, rank, axis, run):
        """Requires that spans of a track do not overlap, have the bytes in metrics.jsonl, and end before the rank's
        waits."""
        spans = []
        for (at, track), there in tracks.items():
            if at == rank and (track == f"axis {axis}" or track.startswith(f"axis {axis} (")):
                self.assertTrue(all(a[1] <= b[0] + 5e-4 for a, b in zip(there, there[1:])), track)
                spans += there
        for operation in {span[2] for span in spans}:
            logged = sum(e["comm_bytes"][axis][operation] for e in self.events("step", run) if e["step"] in (2, 3))
            self.assertEqual(sum(span[3]["bytes"] for span in spans if span[2] == operation), logged)
        waits = [span for span in tracks[rank, "compute"] if span[2].startswith(f"wait for {axis} ")]
        self.assertEqual(len(waits), len(spans))

    def test_offload_has_lanes_of_its_own(self):
        self.train("log.trace=[3, 4]", "offload.optimizer=interleaved", "offload.gpu_fraction=1/2", "offload.subgroup=1024",
                   "offload.slots=2", "precision.compute=bf16", max_steps=6)
        tracks = self.trace()
        self.check_steps(tracks, 0, 3, 4)
        lanes = {track: spans for (_, track), spans in tracks.items() if track.startswith(("host link", "optimizer on"))}
        self.assertEqual(len(lanes), 5)
        for track, spans in lanes.items():
            self.assertTrue(all(a[1] <= b[0] + 5e-4 for a, b in zip(spans, spans[1:])), track)
        def of(track, kind=""):
            """Returns {subgroup: spans} of a track."""
            found = collections.defaultdict(list)
            for span in lanes[track]:
                if span[2].startswith(kind):
                    found[int(span[2].split()[-1])].append(span)
            return found
        host, device = of("optimizer on the host"), of("optimizer on the device")
        gradients, loaded = of("host link: gradients and state to the host", "gradient "), of("host link: state to the device")
        # Every subgroup is updated in one place.
        self.assertEqual(sorted([*host, *device]), list(range(len(host) + len(device))))
        self.assertEqual(set(gradients), set(host))
        self.assertLessEqual(set(loaded), set(device))
        self.assertGreater(len(loaded), 0)
        for spans in (*host.values(), *gradients.values()):
            self.assertIn(len(spans), (2, 3))  # two traced steps, and possibly the rest of the step before
        moved = next(e["offload"]["bytes"]["gradient"] for e in self.events("step") if e["step"] == 4)
        self.assertEqual(sum(spans[-1][3]["bytes"] for spans in gradients.values()), moved)

    def test_a_run_that_ends_among_the_steps_writes_them(self):
        self.assertNotIn("no trace", self.train("log.trace=[3, 100]", max_steps=5))
        self.check_steps(self.trace(), 0, 3, 5)
        self.train("log.trace=[3, 100]")  # resumes within the traced steps
        self.check_steps(self.trace(), 0, 6, 8)

    def test_losses_are_those_of_a_run_without_logs(self):
        self.train("log.tensorboard=true", "log.trace=[2, 4]")
        self.train("run.dir=plain")
        self.assertEqual(self.losses(), self.losses("plain"))

    # --- stages

    STAGES = ("parallel.stages=2", "parallel.transport=threads", "run.threads=1", "train.global_batch=8", "train.micro_batch=1",
              "model.tie_embeddings=false", "log.report=true")

    def test_stages_are_in_all_logs(self):
        said = self.train(*self.STAGES, "log.trace=[3, 4]", "parallel.chunks=2", "model.n_layer=4")
        for part in ("layout     2 stages (1f1b, 2 chunks), tensor 1, data 1: 2 ranks",
                     "; 8 micro-batches per step, bubble ", " predicted by FLOPs", " (most), ", "bubble      "):
            self.assertIn(part, said)
        start, end = self.events("start")[0], self.events("end")[-1]
        self.assertEqual([line.split()[0] for line in start["stages"]], ["layout", "stages", "memory"])
        self.assertGreater(start["predicted"]["bubble"], 0.5 / 8.5 * 0.99)  # that of equal stages, the least
        for step in self.events("step"):
            self.assertGreater(step["bubble"], 0)
            self.assertLess(step["bubble"], 1)
            self.assertEqual(set(step["comm_bytes"]["stage"]), {"send"})
        self.assertEqual(end["measured"]["comm_bytes"], end["predicted"]["comm_bytes"])
        self.assertGreater(end["measured"]["bubble"], 0)
        tracks = self.trace()
        for rank in (0, 1):
            self.check_steps(tracks, rank, 3, 4)
            self.assertGreater(len(tracks[rank, "axis stage"]), 0)
            names = [span[2] for span in tracks[rank, "compute"]]
            for action in (("F 7.0", "B 7.0", "F 7.2", "B 7.2"), ("F 7.1", "B 7.1", "FB 7.3"))[rank]:
                self.assertEqual(names.count(action), 2, action)
        report = json.loads((self.folder / "run" / "report.json").read_text())
        self.assertEqual(report["predicted_bubble"], start["predicted"]["bubble"])
        page = (self.folder / "run" / "report.html").read_text()
        for part in ("<pre>layout     2 stages", ">bubble</th>", "stage send"):
            self.assertIn(part, page)

    def test_few_micro_batches_are_warned_of(self):
        said = self.train(*self.STAGES, "parallel.stages=4", "train.global_batch=4", "model.n_layer=4", max_steps=1)
        self.assertIn("parallel.stages = 4 with 4 micro-batches per step: ", said)
        self.assertIn("of the time is bubble; raise train.global_batch or lower train.micro_batch", said)
        self.assertNotIn("of the time is bubble", self.train(*self.STAGES, "run.dir=more", max_steps=1))

    def test_many_stages_are_planned_in_seconds(self):
        begin = time.monotonic()
        sets = ("parallel.stages=64", "model.n_layer=64", "train.global_batch=256", "parallel.transport=threads")
        said = self.trainer("train", "--dry-run", *self.train_args(sets, {}), stdout=True)
        self.assertIn("layout     64 stages (1f1b), tensor 1, data 1: 64 ranks", said)
        self.assertLess(time.monotonic() - begin, 30)  # 2 s on an idle machine


if __name__ == "__main__":
    rig.main()
