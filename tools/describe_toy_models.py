"""Describe some of llama.cpp's toy models in a few lines each, so that tests can write them without llama.cpp's tools.

    python tools/make_toy_models.py build/toys
    python tools/describe_toy_models.py build/toys

A toy file has every key that any architecture knows. A key is kept if the model does not load without it, or gives
other logits, or another kind of memory. Each try has a process of its own: some missing keys make llama.cpp abort.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gguf import GGUFReader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyllmcancel._native import CancelFlag, Context, Model, Sampler
from pyllmcancel.errors import ContextError
from pyllmcancel.sampling import SamplingParams
from tests.support.toy_models import DESCRIPTIONS, Description, write_described

# All kinds of memory, and one diffusion model, which is refused. Without mamba and jamba, whose
# states make a sweep slow: tests have smaller ones of these.
CHOSEN = (
    *("llama-dense", "gpt2-dense", "qwen3-dense", "phi3-dense", "deepseek2-moe", "qwen3moe-moe"),
    *("gemma2-dense", "gemma3-dense", "gpt-oss-moe", "mamba2-dense"),
    *("granitehybrid-dense", "lfm2-dense", "nemotron_h-dense", "qwen3next-moe"),
    "dream-dense",
)
PROMPT = [(37 * n + 11) % 100 for n in range(80)]  # longer than the toys' sliding windows
Outcome = tuple[str, int, bytes]


def outcome(path: Path) -> Outcome:
    """Kind of memory, sliding window, and the bytes of the logits after a prompt."""
    model = Model.load(path, require_vocabulary=False)
    try:
        context = Context(model, n_ctx=256, n_seq_max=1, n_batch=128, n_threads=1)
    except ContextError:
        return model.memory_kind, model.n_swa, b""
    context.open(0, PROMPT, Sampler(model, SamplingParams(temperature=0.0)), CancelFlag())
    context.step([(0, len(PROMPT))])
    logits = context.logits(0)
    return model.memory_kind, model.n_swa, b"" if logits is None else logits.tobytes()


def tell_outcome(path: Path, told: Connection) -> None:
    told.send(outcome(path))


def outcome_apart(path: Path) -> Outcome | None:
    """The outcome, found in a process of its own; None if there is none."""
    processes = get_context("fork")
    told, teller = processes.Pipe(duplex=False)
    process = processes.Process(target=tell_outcome, args=(path, teller))
    process.start()
    teller.close()
    try:
        found: Outcome = told.recv()
    except EOFError:
        return None
    finally:
        process.join()
    return found


def read_toy(path: Path) -> Description:
    """A whole file's description, every key included."""
    reader = GGUFReader(path)
    arch: str = reader.fields["general.architecture"].contents()
    own = {key.removeprefix(f"{arch}."): field for key, field in reader.fields.items() if key.startswith(f"{arch}.")}
    keys = {key: value for key, field in own.items() if writable(value := field.contents())}
    sizes = {tensor.name: tuple(tensor.shape.tolist()[::-1]) for tensor in reader.tensors}
    # Scales of quantised matrices: any model may have them, none needs them.
    return Description(arch, keys, by_layer({name: size for name, size in sizes.items() if not name.endswith("scale")}))


def writable(value: Any) -> bool:
    """Return whether GGUFWriter can write it: no empty list, and none of the 64-bit numbers that one architecture
    reads.
    """
    entries = value if isinstance(value, list) else [value]
    return bool(entries) and all(not isinstance(entry, int) or 0 <= entry < 2**31 for entry in entries)


def by_layer(sizes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """One entry for the tensors of several layers that have the same name and size."""
    layers: defaultdict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for name, size in sizes.items():
        number = re.search(r"\.(\d+)\.", name)
        pattern = re.sub(r"\.\d+\.", ".*.", name, count=1)
        layers[pattern, size].append(number[1] if number else "")
    return {f"{name}@{','.join(numbers)}" if numbers[0] else name: size for (name, size), numbers in layers.items()}


def shortest(toy: Description, folder: Path) -> Description:
    """Leave out every key that makes no difference."""
    path = folder / f"{toy.arch}.gguf"
    expected = outcome_apart(write_described(path, toy))
    if expected is None:
        raise RuntimeError(f"{toy.arch} does not load from its own description")
    for key in list(toy.keys):
        fewer = {other: value for other, value in toy.keys.items() if other != key}
        without = Description(toy.arch, fewer, toy.tensors)
        if outcome_apart(write_described(path, without)) == expected:
            toy = without
    return toy


def describe(folder: Path, name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        toy = shortest(read_toy(folder / f"{name}.gguf"), Path(scratch))
    sys.stderr.write(f"{name}: {len(toy.keys)} keys, {len(toy.tensors)} tensors\n")
    return {"arch": toy.arch, "keys": toy.keys, "tensors": toy.tensors}


def as_text(described: dict[str, dict[str, Any]]) -> str:
    """JSON with one key or tensor a line."""
    text = json.dumps(described, indent=1)
    return re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda found: f"[{re.sub(chr(10) + ' *', ' ', found[1])}]", text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        described = list(pool.map(partial(describe, arguments.folder), CHOSEN))
    DESCRIPTIONS.write_text(as_text(dict(zip(CHOSEN, described, strict=True))))


if __name__ == "__main__":
    main()
