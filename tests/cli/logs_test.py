#!/usr/bin/env python3
"""Event files for TensorBoard say what metrics.jsonl says."""
import collections
import struct
import unittest

import rig

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None


def crc32c(data):
    """Bit by bit, as the polynomial says."""
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
    """The messages of an event file; their checksums are right and nothing is left over."""
    while data:
        length, crc = struct.unpack("<QI", data[:12])
        assert masked(data[:8]) == crc, "checksum of a length"
        message = data[12:12 + length]
        assert struct.unpack("<I", data[12 + length:16 + length])[0] == masked(message), "checksum of a message"
        yield message
        data = data[16 + length:]


def fields(message):
    """(number, value) of a message of protocol buffers."""
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
    """{tag: {step: value}} of event files in their order, and the steps at which runs started."""
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


class Logs(rig.Runs):
    def event_files(self, run="run"):
        return sorted((self.folder / run).glob("events.out.tfevents.*"))

    def check_scalars(self, found, run="run"):
        """Each number of the log, and no other steps."""
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
        self.assertEqual(self.event_files(), [])

    def test_losses_are_those_of_a_run_without_logs(self):
        self.train("log.tensorboard=true")
        self.train("run.dir=plain")
        self.assertEqual(self.losses(), self.losses("plain"))


if __name__ == "__main__":
    rig.main()
