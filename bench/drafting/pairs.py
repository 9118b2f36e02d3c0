"""Write models that a given one drafts for, or is drafted for by, where no real pair is at hand.

``python -m bench.drafting.pairs MODEL.gguf FOLDER`` writes ``deeper.gguf`` and ``shallower.gguf``.

The deeper model has further layers that add nothing: it says what the given one says, and takes longer for it. So the
given one is a draft model whose tokens are nearly all accepted. The shallower model has the first layers only. As the
given one's draft model it is mostly wrong.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor

LAYER = re.compile(r"blk\.(\d+)\.(.+)")
ADDS = ("attn_output.weight", "ffn_down.weight")  # what a layer adds comes from these
TIMES_DEEPER = 6
SHALLOW = 4  # layers


def write_with_layers(source: Path, target: Path, n_layers: int) -> None:
    """Write the model with its first `n_layers` layers. Layers beyond its last one repeat its own, and add nothing."""
    reader = GGUFReader(source)
    name = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(target, name)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind, *kinds = field.types
        value = n_layers if key == f"{name}.block_count" else field.contents()
        writer.add_key_value(key, value, kind, sub_type=kinds[-1] if kind is GGUFValueType.ARRAY else None)
    layers: dict[int, dict[str, ReaderTensor]] = {}
    for tensor in reader.tensors:
        found = LAYER.fullmatch(tensor.name)
        if found is None:
            add(writer, tensor.name, tensor, tensor.data)
        else:
            layers.setdefault(int(found[1]), {})[found[2]] = tensor
    for number in range(n_layers):
        for part, tensor in layers[number % len(layers)].items():
            # Zero bytes are zeros in every format of weights that has a scale for each block.
            adds_nothing = number >= len(layers) and part in ADDS
            add(writer, f"blk.{number}.{part}", tensor, np.zeros_like(tensor.data) if adds_nothing else tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: GGUFWriter, name: str, tensor: ReaderTensor, data: Any) -> None:
    writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)


def n_layers_of(path: Path) -> int:
    reader = GGUFReader(path)
    name = reader.fields["general.architecture"].contents()
    return int(reader.fields[f"{name}.block_count"].contents())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    write_with_layers(given.model, given.folder / "deeper.gguf", TIMES_DEEPER * n_layers_of(given.model))
    write_with_layers(given.model, given.folder / "shallower.gguf", SHALLOW)


if __name__ == "__main__":
    main()
