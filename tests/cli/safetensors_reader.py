"""Reads safetensors files in plain Python."""
import json
import pathlib
import struct

SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


def read(folder):
    """Returns {name: (dtype, shape, bytes)} of all files in a folder, or of one file."""
    tensors, folder = {}, pathlib.Path(folder)
    for path in [folder] if folder.is_file() else sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        length, = struct.unpack("<Q", content[:8])
        for name, entry in json.loads(content[8:8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            tensors[name] = entry["dtype"], entry["shape"], content[8 + length + begin:8 + length + end]
    return tensors


def floats(tensor):
    """Returns the values of an F32 or F64 tensor."""
    dtype, _, content = tensor
    letter = {"F32": "f", "F64": "d"}[dtype]
    return struct.unpack(f"<{len(content) // SIZES[dtype]}{letter}", content)
