"""A model's copy whose matrices are F32, so that company changes an answer by rounding in the seventh digit only.

A quantised matrix is multiplied with activations that llama.cpp rounds to 8 bits first. Two sums that differ in their
last bit, because other sequences' cells lie between, can be rounded to different values, and after some layers the
likeliest token may be another. With F32 matrices nothing enlarges that bit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize

ARCHITECTURE = "general.architecture"
FILE_TYPE = "general.file_type"


def write_exact_copy(model: Path, path: Path) -> Path:
    """Write `model` to `path` with every tensor as F32."""
    reader = GGUFReader(model)
    writer = GGUFWriter(path, reader.fields[ARCHITECTURE].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in (ARCHITECTURE, FILE_TYPE):
            continue
        inner = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
