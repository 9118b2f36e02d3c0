"""Products of quantized weights give what the same weights give as floats, but for the rounding of activations."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from pyllmcancel import _native
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepStatus
from tests.native.conftest import World, ok
from tests.support import tiny_models
from tests.support.device import load_model
from tests.support.marks import mostly_long
from tests.support.tiny_models import TinyShape, load_vocabulary

# Activations of 8 bits are rounded by half a percent of their deviation, in each product of two layers. Weights that
# are read wrongly give other numbers altogether: an error of one or more.
MOST = 0.06
PROMPT = [(7 * n + 3) % 250 for n in range(21)]  # five tiles of four rows, and one row


def logits(path: Path, chunk: int) -> NDArray[np.float32]:
    world = World(_native, path.stem, path, load_model(path), options={})
    context = world.opened(PROMPT, n_ctx=64, n_batch=32, n_threads=2)
    for begin in range(0, len(PROMPT), chunk):
        ok(context.step([(0, min(chunk, len(PROMPT) - begin))]))
    return np.array(context.logits(0))


def write(path: Path, kind: GGMLQuantizationType, *, experts: bool) -> Path:
    """Write a llama of which no matrix's rows fill whole panels, or one of whose four experts a token has two."""
    sizes = {"n_embd": 256, "n_head": 8, "n_head_kv": 2, "n_ff": 512}
    shape = TinyShape(**sizes, n_layer=1 if experts else 2, vocabulary=load_vocabulary(1021))
    weights, metadata = tiny_models.llama_weights(shape), tiny_models.attention_metadata(shape)
    if experts:
        metadata |= {"expert_count": 4, "expert_used_count": 2}
        weights.normal("blk.0.ffn_gate_inp.weight", 4, shape.n_embd)
        for part in ("gate", "up", "down"):
            size = weights.pop(f"blk.0.ffn_{part}.weight").shape
            weights.normal(f"blk.0.ffn_{part}_exps.weight", 4, *size)
    return tiny_models.write_model(path, "llama", weights, metadata, quantization=kind)


# Of blocks of 32 and of 256 elements, with and without a minimum.
FEW = ("Q4_1", "Q8_0", "Q4_K", "Q6_K")


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize(
    "kind",
    mostly_long(["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"], *FEW),
)
def test_quantized_weights_count_as_their_values(kind: str, experts: bool, tmp_path: Path, monkeypatch: Any) -> None:
    type_ = GGMLQuantizationType[kind]
    quantized = write(tmp_path / "quantized.gguf", type_, experts=experts)
    blocks_of = tiny_models.quantized
    monkeypatch.setattr(
        tiny_models,
        "quantized",
        lambda name, values, _: dequantize(blocks_of(name, values, type_), type_).astype(np.float32),
    )
    plain = write(tmp_path / "plain.gguf", GGMLQuantizationType.F32, experts=experts)
    expected = logits(plain, len(PROMPT))
    for chunk in (1, len(PROMPT)):
        found = logits(quantized, chunk)
        assert np.sqrt(np.mean((found - expected) ** 2)) < MOST * expected.std()


def resident_bytes(path: Path) -> int:
    """The memory of a file's mappings in this process."""
    found, is_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            is_file = line.endswith(str(path))
        elif is_file and name == "Rss:":
            found += 1024 * int(rest[0])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells a mapping's memory")
def test_weights_that_were_copied_take_no_memory_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "quantized.gguf", GGMLQuantizationType.Q4_1, experts=False)
    model = load_model(path)
    if "AVX2" not in _native.kernel_features():
        pytest.skip("nothing is copied")
    assert resident_bytes(path) < path.stat().st_size // 4
    assert model.n_vocab == 1021


def test_a_product_that_a_cancel_has_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "quantized.gguf", GGMLQuantizationType.Q4_1, experts=False)
    world = World(_native, path.stem, path, load_model(path), options={})
    context = world.context(n_ctx=64, n_batch=32, n_threads=2)
    for _ in range(3):
        flag = _native.CancelFlag()
        flag.set()  # seen by the first product, whose rows are too many to be a small one
        context.open(0, PROMPT, _native.Sampler(world.model, SamplingParams(temperature=0.0)), flag)
        assert context.step([(0, len(PROMPT))]).status is StepStatus.ABORTED
        context.close(0, keep=False)
    world.open(context, 0, PROMPT)
    ok(context.step([(0, len(PROMPT))]))
    assert np.array_equal(context.logits(0), logits(path, len(PROMPT)))


def test_a_step_that_a_cancel_has_left_somewhere_leaves_nothing_behind(tmp_path: Path) -> None:
    """Most of a step of so many tokens is attention, which is left between two blocks of cells."""
    prompt = [(7 * n + 3) % 1000 for n in range(1500)]
    path = write(tmp_path / "quantized.gguf", GGMLQuantizationType.Q4_1, experts=False)
    world = World(_native, path.stem, path, load_model(path), options={})
    context = world.opened(prompt, n_ctx=2048, n_batch=2048, n_threads=2)
    began = time.monotonic()
    ok(context.step([(0, len(prompt))]))
    seconds = time.monotonic() - began
    expected = np.array(context.logits(0))
    context.close(0, keep=False)
    for share in range(9):
        flag = _native.CancelFlag()
        context.open(0, prompt, _native.Sampler(world.model, SamplingParams(temperature=0.0)), flag)
        timer = threading.Timer(seconds * share / 10, flag.set)
        timer.start()
        status = context.step([(0, len(prompt))]).status
        timer.join()
        assert status in (StepStatus.ABORTED, StepStatus.OK)
        context.close(0, keep=False)
    world.open(context, 0, prompt)
    ok(context.step([(0, len(prompt))]))
    assert np.array_equal(context.logits(0), expected)
