"""A token's logits are a function of the tokens before it: of nothing that is computed beside it, or was before.

Compared bit by bit. Each test varies one way in which company or history could reach a result.
"""

import platform
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from pyllmcancel import _native
from pyllmcancel.engine.batch_invariance import kernels_were_compared
from pyllmcancel.scheduling.prefix_cache import PrefixCache, PrefixMatch
from tests.native.conftest import World, ok
from tests.support.device import load_model
from tests.support.marks import mostly_long
from tests.support.tiny_models import write_tiny_llama, write_tiny_sliding_window

PLAIN = ("F32", "F16", "BF16")
OF_32 = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")  # elements to a block
OF_256 = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
KINDS = (*PLAIN, *OF_32, *OF_256, "wide heads", "sliding window")
# One of each size of blocks, with and without a minimum, and what is no kind of weights.
FEW = ("F32", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "wide heads", "sliding window")
PROMPT = [(7 * n + 3) % 250 for n in range(150)]
OTHERS = [[(step * n + 5) % 250 for n in range(length)] for step, length in ((11, 20), (13, 90), (17, 140))]
COUNT = 4  # tokens of each answer


@pytest.fixture(scope="module", params=mostly_long(KINDS, *FEW))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    match request.param:
        case "sliding window":
            write_tiny_sliding_window(path, window=64, quantization=GGMLQuantizationType.Q8_0)
        case "wide heads":
            sizes = {"n_embd": 320, "n_head": 4, "n_head_kv": 1}  # of 80 elements
            write_tiny_llama(path, quantization=GGMLQuantizationType.Q8_0, **sizes)
        case kind:
            sizes = {"n_embd": 256, "n_head": 8, "n_head_kv": 2, "n_ff": 512}
            write_tiny_llama(path, quantization=GGMLQuantizationType[kind], **sizes)
    if not kernels_were_compared(_native.kernel_features()):
        pytest.skip("nothing is promised on this processor")
    return World(_native, request.param, path, load_model(path), options={})


def test_the_model_says_that_its_rows_are_alike(world: World) -> None:
    assert world.model.has_invariant_rows == (platform.machine() in ("x86_64", "AMD64"))


def divided(world: World, **options: Any) -> Any:
    return world.context(**{"kv_unified": False, "n_ctx": 4 * 1280, "n_batch": 512, "n_threads": 1} | options)


def prefill(context: Any, seq: int, chunk: int = 512) -> None:
    length = len(context.tokens(seq))
    while (n_pending := length - context.n_committed(seq)) > 0:
        ok(context.step([(seq, min(chunk, n_pending))]))


def generate(context: Any, seq: int, beside: tuple[int, ...] = ()) -> np.ndarray:
    rows = [np.array(context.logits(seq))]
    for _ in range(COUNT):
        ok(context.step([(number, 1) for number in sorted((seq, *beside))]))
        rows.append(np.array(context.logits(seq)))
    return np.stack(rows)


def alone(world: World, prompt: list[int] = PROMPT, *, chunk: int = 512, **options: Any) -> np.ndarray:
    context = divided(world, **options)
    world.open(context, 1, prompt)
    prefill(context, 1, chunk)
    return generate(context, 1)


def differing(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of any logit. Zeros of both signs are the same."""
    return float(np.abs(found - expected).max())


def check_as_alone(
    world: World, context: Any, prompt: list[int] = PROMPT, *, beside: tuple[int, ...] = (), n_known: int | None = None
) -> None:
    """The prompt on sequence 1, of which `n_known` tokens are there already, is answered as it is alone."""
    world.open(context, 1, prompt)
    assert n_known is None or context.n_committed(1) == n_known
    prefill(context, 1)
    assert differing(generate(context, 1, beside), alone(world, prompt)) == 0.0


@pytest.mark.parametrize("chunk", [1, 3, 5, 37, 64, 100])
def test_however_a_prompt_is_cut_into_steps(world: World, chunk: int) -> None:
    assert differing(alone(world, chunk=chunk), alone(world)) == 0.0


@pytest.mark.parametrize("beside", [(0,), (2,), (0, 2), (0, 2, 3), (3,)], ids=str)
def test_whoever_decodes_in_the_same_step(world: World, beside: tuple[int, ...]) -> None:
    context = divided(world)
    for seq, prompt in zip((0, 2, 3), OTHERS, strict=True):
        world.open(context, seq, prompt)
        prefill(context, seq)
    check_as_alone(world, context, beside=beside)


def test_prompts_of_one_step(world: World) -> None:
    context = divided(world)
    world.open(context, 1, PROMPT)
    world.open(context, 2, OTHERS[1])
    ok(context.step([(1, len(PROMPT)), (2, len(OTHERS[1]))]))
    assert differing(generate(context, 1), alone(world)) == 0.0


def test_however_many_threads_compute(world: World) -> None:
    """Three, which divide nothing evenly; the next test has two."""
    assert differing(alone(world, n_threads=3), alone(world)) == 0.0


def test_more_cells_than_a_block_of_attention(world: World) -> None:
    long = [(19 * n + 1) % 250 for n in range(1100)]
    whole = alone(world, long)
    assert differing(alone(world, long, chunk=300), whole) == 0.0
    assert differing(alone(world, long, n_threads=2), whole) == 0.0


def test_a_prefix_that_another_answer_left(world: World) -> None:
    """Cells of an answer are computed one by one, those of a prompt many at a time."""
    context = divided(world)
    world.open(context, 1, PROMPT[:20])
    prefill(context, 1)
    for _ in range(12):
        ok(context.step([(1, 1)]))
    known = context.tokens(1)[: context.n_committed(1)]
    context.close(1, keep=True)
    check_as_alone(world, context, [*known, *PROMPT[40:60]], n_known=len(known))


def test_a_prefix_that_is_copied_from_another_sequence(world: World) -> None:
    context = divided(world)
    world.open(context, 0, [*PROMPT[:90], 7, 8, 9])
    prefill(context, 0, 31)
    if not context.can_swap:  # a window's cells are not copied
        pytest.skip("nothing is copied")
    assert context.share_prefix(0, 1, 90, max_bytes=1 << 30)
    check_as_alone(world, context, n_known=90)


def test_a_sequence_that_changes_places_with_an_idle_one_in_its_answer(world: World) -> None:
    context = divided(world)
    if not context.can_swap:  # a window's cells are not copied
        pytest.skip("nothing is copied")
    cache = PrefixCache(context)
    prompts = {2: OTHERS[1], 3: PROMPT}
    for seq, prompt in prompts.items():
        cache.take(PrefixMatch(seq), running=(0,))
        world.open(context, seq, prompt)
        prefill(context, seq, 31)
    context.close(2, keep=True)
    cache.give_back(2)
    ok(context.step([(3, 1)]))
    tokens = context.tokens(3)
    assert cache.move(3, 2, 1 << 30)
    world.open(context, 2, tokens)
    assert context.n_committed(2) == len(PROMPT) + 1
    ok(context.step([(2, 1)]))
    assert differing(generate(context, 2)[:-2], alone(world)[2:]) == 0.0
    world.open(context, 3, OTHERS[1])
    assert context.n_committed(3) == len(OTHERS[1]) - 1
    prefill(context, 3)
    assert differing(generate(context, 3, beside=(2,)), alone(world, OTHERS[1])) == 0.0


def test_a_sequence_that_is_used_again(world: World) -> None:
    context = divided(world)
    for prompt in OTHERS:
        world.open(context, 1, prompt)
        prefill(context, 1, 50)
        context.close(1, keep=True)
    check_as_alone(world, context)


def test_a_step_that_was_aborted_before(world: World) -> None:
    context = divided(world)
    flag = world.open(context, 1, PROMPT)
    ok(context.step([(1, 70)]))
    flag.set()
    context.step([(1, 80)])
    context.close(1, keep=True)
    check_as_alone(world, context)
