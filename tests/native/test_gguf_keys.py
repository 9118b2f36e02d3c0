"""Keys of a model file that llama.cpp would end the process over: refused by their names, before it sees them."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from gguf import GGUFValueType as Type

from tests.support.gguf_bytes import GgufBytes, Value

NO_TEXT = b"\xff\xfe\xc3("
Change = Callable[[GgufBytes], GgufBytes]


def number(key: str, value: int) -> Change:
    return lambda base: base.with_key(key, Value(Type.UINT32, value))


def real(key: str, value: float) -> Change:
    return lambda base: base.with_key(key, Value(Type.FLOAT32, value))


def text(key: str, value: bytes) -> Change:
    return lambda base: base.with_key(key, Value(Type.STRING, value))


def array(key: str, values: list[int]) -> Change:
    return lambda base: base.with_key(key, Value(Type.ARRAY, values, Type.UINT32))


def both(*changes: Change) -> Change:
    def change(base: GgufBytes) -> GgufBytes:
        for each in changes:
            base = each(base)
        return base

    return change


def same_token_twice(base: GgufBytes) -> GgufBytes:
    tokens = base.keys[b"tokenizer.ggml.tokens"]
    return base.with_key("tokenizer.ggml.tokens", replace(tokens, value=[*tokens.value[:-1], tokens.value[5]]))


def whole_numbers(base: GgufBytes) -> GgufBytes:
    first, *others = base.tensors
    return replace(base, tensors=[replace(first, type=int(GGMLQuantizationType.I32)), *others])


def experts(count: int, used: int, *more: Change) -> Change:
    return both(number("llama.expert_count", count), number("llama.expert_used_count", used), *more)


def groups(count: int, used: int) -> Change:
    return experts(8, 2, number("llama.expert_group_count", count), number("llama.expert_group_used_count", used))


def without_beginning(base: GgufBytes) -> GgufBytes:
    """Texts are to begin with a token, and there is none: a tokenizer that has no such token by default."""
    other = text("tokenizer.ggml.model", b"t5")(base).with_key("tokenizer.ggml.bos_token_id", None)
    return other.with_key("tokenizer.ggml.add_bos_token", Value(Type.BOOL, value=True))


def half_precision_norm(base: GgufBytes) -> GgufBytes:
    """The first tensor, a norm, in F16, and the room that it had before."""
    first, *others = base.tensors
    assert first.name == b"blk.0.attn_norm.weight"
    data = bytes(128) + base.data[256:]
    moved = [replace(tensor, offset=tensor.offset - 128) for tensor in others]
    return replace(base, tensors=[replace(first, type=int(GGMLQuantizationType.F16)), *moved], data=data)


EPSILON = "llama.attention.layer_norm_rms_epsilon"

# How a tiny llama is changed, and how the error names what is wrong.
REFUSED: dict[str, tuple[Change, str]] = {
    "no layer": (number("llama.block_count", 0), r"llama\.block_count is 0"),
    "513 layers": (number("llama.block_count", 513), r"llama\.block_count is 513; it must lie between 1 and 512"),
    "1,000 layers": (number("llama.block_count", 1000), r"llama\.block_count is 1000"),
    "2³¹ layers": (number("llama.block_count", 2**31), r"llama\.block_count is 2147483648"),
    "2³² - 1 layers": (number("llama.block_count", 2**32 - 1), r"llama\.block_count is 4294967295"),
    "more predicting layers than layers": (number("llama.nextn_predict_layers", 2), r"llama\.nextn_predict_layers"),
    "no context": (number("llama.context_length", 0), r"llama\.context_length is 0"),
    "a context of 2³¹": (number("llama.context_length", 2**31), r"llama\.context_length is 2147483648"),
    "no embedding": (number("llama.embedding_length", 0), r"llama\.embedding_length is 0"),
    "2³¹ heads": (number("llama.attention.head_count", 2**31), r"llama\.attention\.head_count is 2147483648"),
    "2³¹ heads in one layer": (
        array("llama.attention.head_count_kv", [2, 2**31]),
        r"llama\.attention\.head_count_kv has the entry 2147483648",
    ),
    "epsilon NaN": (real(EPSILON, math.nan), rf"{EPSILON} is not a number"),
    "epsilon -1": (real(EPSILON, -1.0), rf"{EPSILON} is -1"),
    "epsilon infinite": (real(EPSILON, math.inf), rf"{EPSILON} is inf"),
    "one of several scales NaN": (
        lambda base: base.with_key("llama.scales", Value(Type.ARRAY, [1.0, math.nan], Type.FLOAT32)),
        r"llama\.scales is not a number",
    ),
    "a rotation NaN": (real("llama.rope.freq_base", math.nan), r"llama\.rope\.freq_base is not a number"),
    "an unknown scaling": (text("llama.rope.scaling.type", b"magic"), r"llama\.rope\.scaling\.type is none of"),
    "a scaling that is not UTF-8": (text("llama.rope.scaling.type", NO_TEXT), r"llama\.rope\.scaling\.type is none of"),
    "1,025 experts": (experts(1025, 2), r"llama\.expert_count is 1025"),
    "experts of which none is used": (number("llama.expert_count", 4), r"llama\.expert_used_count must be at least 1"),
    "more experts used than there are": (experts(2, 3), r"llama\.expert_used_count is 3"),
    "experts used where there are none": (number("llama.expert_used_count", 1), r"llama\.expert_used_count is 1"),
    "as many groups as experts": (groups(8, 1), r"llama\.expert_group_count must be less"),
    "groups that do not divide the experts": (groups(3, 1), r"llama\.expert_group_count must divide"),
    "no group used": (groups(4, 0), r"llama\.expert_group_used_count"),
    "two tokens alike": (same_token_twice, r"tokenizer\.ggml\.tokens has the same text for the tokens 5 and 1023"),
    "no words": (text("tokenizer.ggml.model", b"no_vocab"), r"tokenizer\.ggml\.model"),
    "an architecture that is not UTF-8": (text("general.architecture", NO_TEXT), r"\\xff\\xfe"),
    "a tokenizer that is not UTF-8": (text("tokenizer.ggml.model", NO_TEXT), r"unknown tokenizer: '\\xff\\xfe"),
    "texts that begin with no token": (without_beginning, r"tokenizer\.ggml\.bos_token_id is missing"),
    "a window of 2³¹ - 1": (
        number("llama.attention.sliding_window", 2**31 - 1),
        r"llama\.attention\.sliding_window is 2147483647",
    ),
    "an odd rotation": (number("llama.rope.dimension_count", 7), r"llama\.rope\.dimension_count is 7; it must be even"),
    "a rotation of nothing": (number("llama.rope.dimension_count", 0), r"rotates|invalid n_rot"),
    "a rotation of more than a head": (
        number("llama.rope.dimension_count", 32),
        r"llama\.rope\.dimension_count is 32; it must be even, and no more than a head's 16",
    ),
    "a norm of half precision": (half_precision_norm, r"the tensor blk\.0\.attn_norm\.weight is of type f16"),
    "a tensor of whole numbers": (whole_numbers, r"the tensor blk\.0\.attn_norm\.weight is of type i32"),
}

LOADED: dict[str, Change] = {
    "nothing changed": lambda base: base,
    "a name that is not UTF-8": text("general.name", NO_TEXT),
    "a key that is not UTF-8": lambda base: replace(base, keys=base.keys | {NO_TEXT: Value(Type.STRING, NO_TEXT)}),
    "a chat template that is not UTF-8": text("tokenizer.chat_template", NO_TEXT),
    "special tokens outside the vocabulary": number("tokenizer.ggml.eot_token_id", 2**32 - 1),
    "a context of 2³¹ - 1": number("llama.context_length", 2**31 - 1),
}


@pytest.fixture(scope="module")
def outcomes(model_files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Return the outcome of each file, which is used in a child process that may die of it."""
    folder = tmp_path_factory.mktemp("keys")
    base = GgufBytes.read(model_files["attention"])
    changes = {name: change for name, (change, _) in REFUSED.items()} | LOADED
    paths = {name: change(base).write(folder / f"{i}.gguf") for i, (name, change) in enumerate(changes.items())}
    # By its path, with -P: in the checkout's root Python would find the sources, which have no compiled module.
    program = Path(__file__).resolve().parents[1] / "fuzz" / "gguf_use.py"
    command = [sys.executable, "-P", str(program), "--vocabulary", *map(str, paths.values())]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = json.loads(said)
    return {name: found[str(path)] for name, path in paths.items()}


@pytest.mark.parametrize("name", REFUSED)
def test_a_key_that_cannot_be_right_is_refused_by_its_name(name: str, outcomes: dict[str, tuple[str, str]]) -> None:
    outcome, why = outcomes[name]
    assert outcome == "refused", why
    assert re.search(REFUSED[name][1], why), why


@pytest.mark.parametrize("name", LOADED)
def test_a_harmless_key_is_loaded(name: str, outcomes: dict[str, tuple[str, str]]) -> None:
    assert tuple(outcomes[name]) == ("loaded", "loaded")
