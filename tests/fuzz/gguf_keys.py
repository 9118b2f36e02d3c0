"""Break each key of small models in each way, one at a time, and see that no file ends the process.

``python -m tests.fuzz.gguf_keys`` writes some 60,000 files, each used in a child of its own (`gguf_use`), and prints
the ones that ended it, or raised what the loader should have said itself.
"""

import argparse
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gguf import GGUFValueType as Type

from tests.fuzz.gguf_use import use_in_child
from tests.support import tiny_embedders, tiny_models, toy_models
from tests.support.gguf_bytes import GgufBytes, Value

NAMES = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp" / "src" / "llama-arch.cpp"
INTEGERS = (0, 1, 2, 3, 7, 255, 256, 511, 513, 1000, 100_003, 2**31 - 1, 2**31, 2**32 - 1)
FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-45, 3e38)
NO_TEXT = b"\xff\xfe\x00\xc3("


def bases(folder: Path) -> Iterator[tuple[str, GgufBytes]]:
    writers = {
        "tiny-llama": tiny_models.write_tiny_llama,
        "tiny-gemma2": tiny_models.write_tiny_sliding_window,
        "tiny-mamba": tiny_models.write_tiny_recurrent,
        "tiny-jamba": tiny_models.write_tiny_hybrid,
        "tiny-bert": tiny_embedders.write_tiny_encoder,
        "tiny-qwen3": tiny_embedders.write_tiny_decoder,
    }
    path = folder / "base.gguf"
    for name, write in writers.items():
        yield name, GgufBytes.read(write(path))
    for name in toy_models.descriptions():
        yield name, GgufBytes.read(toy_models.write_toy(path, name))


def broken_values(old: Value) -> Iterator[Value | None]:
    """Other values for a key: of its own type, at the edges; of other types; none."""
    yield None
    yield Value(Type.STRING, b"")
    yield Value(Type.STRING, NO_TEXT)
    yield Value(Type.FLOAT32, 1.0)
    yield Value(Type.UINT32, 1)
    yield Value(Type.UINT64, 2**63)
    yield Value(Type.INT32, -1)
    yield Value(Type.BOOL, True)
    yield Value(Type.ARRAY, [], Type.UINT32)
    yield Value(Type.ARRAY, [b"a", NO_TEXT], Type.STRING)
    if old.type is Type.UINT32:
        yield from (Value(Type.UINT32, number) for number in INTEGERS)
        yield from (
            Value(Type.ARRAY, [number] * length, Type.UINT32) for number in (0, 1, 3, 2**31) for length in (1, 2)
        )
    elif old.type is Type.FLOAT32:
        yield from (Value(Type.FLOAT32, number) for number in FLOATS)
    elif old.type is Type.BOOL:
        yield Value(Type.BOOL, not old.value)
    elif old.type is Type.ARRAY:
        yield from broken_arrays(old)


def broken_arrays(old: Value) -> Iterator[Value]:
    yield from (replace(old, value=kept) for kept in ([], old.value[:1], old.value[:-1], old.value * 2))
    bad: tuple[object, ...] = INTEGERS if old.item in {Type.UINT32, Type.INT32} else FLOATS
    if old.item is Type.INT32:
        bad = (-1, 0, 1, 2, 3, 4, 5, 6, 99, 2**31 - 1, -(2**31))
    elif old.item is Type.STRING:
        bad = (b"", b" ", b"\0", NO_TEXT, b"a" * 100_000, b"x y", "Ġ".encode(), b"<0xZZ>")
    for value in bad if old.item is not Type.BOOL else ():
        yield replace(old, value=[value] * len(old.value))
        for index in (0, len(old.value) // 2, len(old.value) - 1):
            if old.value:
                yield replace(old, value=[*old.value[:index], value, *old.value[index + 1 :]])


def inserted(arch: str) -> Iterator[tuple[str, Value]]:
    """Every key that llama.cpp knows, with numbers, flags, texts and arrays."""
    source = NAMES.read_text()
    for name in re.findall(r'\{\s*LLM_KV_\w+\s*,\s*"([^"]+)"', source[source.index("LLM_KV_NAMES") :]):
        key = name.replace("%s", arch)
        yield from ((key, Value(Type.UINT32, number)) for number in (0, 1, 3, 2**31 - 1, 2**32 - 1))
        yield from ((key, Value(Type.FLOAT32, number)) for number in (math.nan, -1.0, 0.0))
        yield from ((key, Value(Type.BOOL, value)) for value in (False, True))
        yield key, Value(Type.STRING, NO_TEXT)
        yield from ((key, Value(Type.ARRAY, [number] * 2, Type.INT32)) for number in (0, 1, -1))
        yield key, Value(Type.ARRAY, [2**31] * 3, Type.UINT32)
        yield key, Value(Type.ARRAY, [math.nan] * 2, Type.FLOAT32)
        yield key, Value(Type.ARRAY, [NO_TEXT], Type.STRING)


def broken_tensors(base: GgufBytes) -> Iterator[tuple[str, GgufBytes]]:
    """Each tensor left out, of another size or type, or of another name."""
    for index, tensor in enumerate(base.tensors):
        others = [*base.tensors[:index], *base.tensors[index + 1 :]]
        sizes = tensor.sizes
        changed = [
            replace(tensor, sizes=sizes[::-1]),
            replace(tensor, sizes=(*sizes[:-1], 0)),
            replace(tensor, sizes=(sizes[0] // 2, *sizes[1:-1], sizes[-1] * 2)),
            replace(tensor, sizes=()),
            replace(tensor, sizes=(*sizes, 1, 1)[:4]),
            replace(tensor, name=NO_TEXT),
            replace(tensor, name=b""),
            *(replace(tensor, type=kind) for kind in (1, 2, 4, 14, 24, 26, 28, 36, 39, 99)),
        ]
        name = tensor.name.decode()
        yield f"{name} left out", replace(base, tensors=others)
        for other in changed:
            tensors = [*base.tensors[:index], other, *base.tensors[index + 1 :]]
            yield f"{name} -> {other}", replace(base, tensors=tensors)


def broken(base: GgufBytes) -> Iterator[tuple[str, GgufBytes]]:
    arch = base.keys[b"general.architecture"].value.decode()
    for key, old in base.keys.items():
        for value in broken_values(old):
            yield f"{key.decode()} = {short(value)}", base.with_key(key.decode(), value)
    for name, added in inserted(arch):
        if name.encode() not in base.keys:
            yield f"{name} + {short(added)}", base.with_key(name, added)
    yield from broken_tensors(base)


def short(value: Value | None) -> str:
    text = "nothing" if value is None else f"{value.type.name} {value.value}"
    return text if len(text) < 60 else f"{text[:30]} ... {text[-25:]}"


def sweep(name: str, base: GgufBytes, folder: Path, only: str, every: int) -> Counter[str]:
    outcomes = Counter[str]()
    path = folder / "broken.gguf"
    for number, (what, content) in enumerate(broken(base)):
        if only in what and number % every == 0:
            outcome, why = use_in_child(content.write(path))
            outcomes[outcome] += 1
            if outcome in {"died", "raised"}:
                sys.stdout.write(f"{outcome}: {name}: {what}: {why.strip().splitlines()[-1] if why else ''}\n")
                sys.stdout.flush()
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="only models whose name matches this")
    parser.add_argument("--only", default="", help="only changes whose description contains this")
    parser.add_argument("--every", type=int, default=1, help="only every so-manieth of them")
    options = parser.parse_args()
    total = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name, base in bases(Path(folder)):
            if re.search(options.model, name):
                found = sweep(name, base, Path(folder), options.only, options.every)
                sys.stdout.write(f"{name}: {dict(found)}\n")
                sys.stdout.flush()
                total += found
    sys.stdout.write(f"all: {dict(total)}\n")
    return 1 if total["died"] or total["raised"] else 0


if __name__ == "__main__":
    sys.exit(main())
