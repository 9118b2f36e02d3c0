"""Pictures on the compiled core, with toy projectors of three kinds: rows, positions, cancels at every node, truth."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllmcancel import _native
from pyllmcancel.errors import MediaError, ModelLoadError, UsageError
from pyllmcancel.media.library import MediaLibrary
from pyllmcancel.media.values import Media, MediaKind, MediaPrompt
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepStatus
from tests.support.fake_media import png
from tests.support.media_files import jpeg_head
from tests.support.threads import N_THREADS
from tests.support.toy_projectors import PAIRS, noise_png, write_pair, write_projector

SIZES = {"n_ctx": 1024, "n_seq_max": 3, "n_batch": 128, "n_threads": N_THREADS, "flash_attention": 0}
WIDE, TALL = (100, 60), (30, 90)


@dataclass
class Sight:
    kind: str
    model: Any
    path: Path

    def encoder(self, **options: Any) -> Any:
        return _native.MediaEncoder(self.model, self.path, n_threads=N_THREADS, **options)

    def library(self, encoder: Any = None) -> MediaLibrary:
        of_core = {"new_flag": _native.CancelFlag, "image_size": _native.image_size}
        sizes = {"cache_bytes": 1 << 24, "n_batch": SIZES["n_batch"]}
        return MediaLibrary(encoder or self.encoder(), self.model, **of_core, **sizes)

    def context(self, **options: Any) -> Any:
        return _native.Context(self.model, **SIZES | options)

    def encoded(self, *seeds: int) -> list[MediaPrompt]:
        """Prompts of one library, each with one picture, which is encoded."""
        encoder = self.encoder()
        library = self.library(encoder)
        prompts = [self.prompt(library, seed) for seed in seeds]
        for prompt in prompts:
            encode(encoder, prompt)
        return prompts

    def prompt(self, library: MediaLibrary, *seeds: int, size: tuple[int, int] = WIDE) -> MediaPrompt:
        return library.prepare("look: " + library.marker * len(seeds) + " what is it?", pictures(*seeds, size=size))


def pictures(*seeds: int, size: tuple[int, int]) -> list[Media]:
    return [Media.of(MediaKind.IMAGE, noise_png(*size, seed=seed)) for seed in seeds]


@pytest.fixture(scope="module", params=PAIRS)
def sight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sight:
    text, projector = write_pair(tmp_path_factory.mktemp("sight"), request.param)
    return Sight(request.param, _native.Model.load(text), projector)


def audience_of(*flags: Any) -> Any:
    audience = _native.Audience()
    for flag in flags:
        audience.join(flag)
    return audience


def encode(encoder: Any, prompt: MediaPrompt) -> None:
    assert all(encoder.encode(run.chunk, audience_of(_native.CancelFlag())) for run in prompt.runs)


def opened(context: Any, seq: int, prompt: Sequence[int], media: Any = (), **options: Any) -> Any:
    flag = _native.CancelFlag()
    sampler = _native.Sampler(context.model, SamplingParams(temperature=0.0))
    context.open(seq, list(prompt), sampler, flag, media=media, **options)
    return flag


def uniform(prompt: MediaPrompt, n_committed: int, most: int) -> int:
    """How many tokens a step takes next: text, or rows of one picture."""
    borders = [edge for run in prompt.runs for edge in (run.start, run.end) if edge > n_committed]
    return min([most, *(edge - n_committed for edge in borders), len(prompt) - n_committed])


def prefill(context: Any, seq: int, prompt: MediaPrompt, *, until: int | None = None, most: int = 128) -> list[int]:
    """Compute a prompt as far as `until`; return the token that follows its end."""
    got: list[int] = []
    while not got and context.n_committed(seq) < (until if until is not None else len(prompt)):
        result = context.step([(seq, uniform(prompt, context.n_committed(seq), most))])
        assert result.status is StepStatus.OK
        got += [token.token for token in result.rows[0].sampled]
    return got


def decode(context: Any, seq: int, count: int) -> list[int]:
    got: list[int] = []
    while len(got) < count:
        (row,) = context.step([(seq, 1)]).rows
        got.append(row.token)
    return got


def begun(context: Any, seq: int, prompt: MediaPrompt) -> Any:
    """Open a sequence, and compute its prompt as far as its first picture; return its flag."""
    flag = opened(context, seq, prompt, prompt.runs)
    prefill(context, seq, prompt, until=prompt.runs[0].start)
    return flag


def answer(sight: Sight, prompt: MediaPrompt, count: int = 8, **options: Any) -> list[int]:
    context = sight.context(**options)
    opened(context, 0, prompt, prompt.runs)
    return prefill(context, 0, prompt) + decode(context, 0, count - 1)


def test_a_picture_decides_the_answer(sight: Sight) -> None:
    prompts = sight.encoded(1, 2)
    answers = [answer(sight, prompt) for prompt in prompts]
    assert answers[0] != answers[1]
    assert answers[0] == answer(sight, prompts[0])


def test_positions_are_fewer_than_rows_where_rows_share_them(sight: Sight) -> None:
    (chunk, *_) = [run.chunk for run in sight.prompt(sight.library(), 1).runs]
    assert (chunk.n_pos < chunk.n_tokens) == (sight.kind == "qwen25vl")
    assert chunk.non_causal == (sight.kind == "gemma3")
    assert chunk.divisible == (sight.kind == "idefics3")


def test_rows_have_the_same_bits_again_and_after_a_cancel_at_every_node(sight: Sight) -> None:
    encoder = sight.encoder(every_node=True)
    prompt = sight.prompt(sight.library(encoder), 1)
    encode(encoder, prompt)
    known = [run.chunk.rows().copy() for run in prompt.runs]
    n_nodes = encoder.polls
    assert n_nodes > 50
    data = noise_png(*WIDE, seed=1)
    for node in range(1, n_nodes + 1):
        parts = encoder.parts(data, audio=False, flag=_native.CancelFlag(), seconds=10.0)
        chunk = next(part for part in parts if not isinstance(part, list))
        flag = _native.CancelFlag()
        encoder.raise_at(node, flag)
        assert not encoder.encode(chunk, audience_of(flag))
        assert not chunk.encoded
        assert chunk.rows() is None
        assert encoder.polls == node
        if node % 7 == 1:
            assert encoder.encode(chunk, audience_of(_native.CancelFlag()))
            np.testing.assert_array_equal(chunk.rows(), known[0])


def test_an_encoding_that_is_cancelled_before_it_begins_computes_nothing(sight: Sight) -> None:
    encoder, prompt = sight.encoder(every_node=True), sight.prompt(sight.library(), 1)
    flag = _native.CancelFlag()
    flag.set()
    assert not encoder.encode(prompt.runs[0].chunk, audience_of(flag))
    assert encoder.polls == 0


def test_one_of_two_that_leaves_does_not_end_an_encoding(sight: Sight) -> None:
    encoder, prompt = sight.encoder(every_node=True), sight.prompt(sight.library(), 1)
    left = _native.CancelFlag()
    encoder.raise_at(3, left)
    assert encoder.encode(prompt.runs[0].chunk, audience_of(left, _native.CancelFlag()))


def test_a_cancel_at_every_node_of_a_picture_s_step_harms_nobody(sight: Sight) -> None:
    (prompt,) = sight.encoded(1)
    expected = answer(sight, prompt, 4)
    context = sight.context()
    text = sight.model.tokenize("a neighbour's text that goes on", add_special=False)
    opened(context, 1, text)
    first = [row.token for row in context.step([(1, len(text))]).rows]
    alone = sight.context()
    opened(alone, 0, text)
    beside = [row.token for row in alone.step([(0, len(text))]).rows] + decode(alone, 0, 6)
    assert beside[0] == first[0]
    run = prompt.runs[0]
    begun(context, 0, prompt)
    n_nodes = context.step([(0, uniform(prompt, run.start, 128))]).polls
    assert n_nodes > 20
    context.close(0, keep=False)
    for node in range(1, n_nodes):
        context.raise_at(node, begun(context, 0, prompt))
        assert context.step([(0, uniform(prompt, run.start, 128))]).status is StepStatus.ABORTED
        assert context.n_committed(0) == run.start
        context.close(0, keep=True)
    opened(context, 0, prompt, prompt.runs)
    assert context.n_committed(0) == run.start
    assert prefill(context, 0, prompt) + decode(context, 0, 3) == expected
    assert first + decode(context, 1, 6) == beside


def test_a_picture_in_parts_is_the_same_and_its_first_part_alone_is_no_prefix(sight: Sight) -> None:
    (prompt,) = sight.encoded(1)
    run = prompt.runs[0]
    context = sight.context()
    flag = begun(context, 0, prompt)
    if run.chunk.non_causal:
        with pytest.raises(UsageError, match="one step"):
            context.step([(0, 3)])
        return
    context.step([(0, 3)])
    context.raise_at(5, flag)
    assert context.step([(0, 3)]).status is StepStatus.ABORTED
    assert context.n_committed(0) == (run.start + 3 if run.chunk.divisible else run.start)
    context.close(0, keep=True)
    opened(context, 0, prompt, prompt.runs)
    assert prefill(context, 0, prompt, most=5) + decode(context, 0, 3) == answer(sight, prompt, 4)


def test_a_prefix_with_a_picture_is_reused_shared_and_swapped(sight: Sight) -> None:
    prompt, other = sight.encoded(1, 2)
    expected = answer(sight, prompt, 6, flash_attention=-1)
    context = sight.context(flash_attention=-1)
    opened(context, 0, prompt, prompt.runs)
    prefill(context, 0, prompt)
    assert context.common_prefixes(list(prompt))[0] == len(prompt) - 1
    assert context.common_prefixes(list(other))[0] == other.runs[0].start
    start, end = prompt.runs[0].start, prompt.runs[0].end
    assert context.common_prefixes(list(prompt[:end]))[0] in (start, end - 1)
    if context.share_prefix(0, 1, len(prompt) - 1, max_bytes=1 << 30):
        opened(context, 1, prompt, prompt.runs)
        assert context.n_committed(1) == len(prompt) - 1
        assert prefill(context, 1, prompt) + decode(context, 1, 5) == expected
    context.close(0, keep=True)
    copy = context.copy_out(0, max_bytes=1 << 30)
    context.drop_cells(0)
    if copy is not None:
        assert context.common_with([copy], list(other)) == [other.runs[0].start]
        assert context.swap_in(2, copy)
        opened(context, 2, prompt, prompt.runs)
        assert context.n_committed(2) >= len(prompt) - 4
        assert prefill(context, 2, prompt) + decode(context, 2, 5) == expected


def test_two_pictures_and_any_size(sight: Sight) -> None:
    encoder = sight.encoder()
    library = sight.library(encoder)
    for size in (WIDE, TALL, (1, 1), (300, 2)):
        try:
            prompt = sight.prompt(library, 1, 2, size=size)
        except MediaError:
            assert size not in (WIDE, TALL)
            continue
        alone = library.prepare(library.marker, pictures(1, size=size), add_special=False)
        assert encoder.n_image_tokens(*size) == len(alone)
        encode(encoder, prompt)
        assert len(answer(sight, prompt, 3)) == 3


def test_a_picture_that_is_not_encoded_cannot_be_computed(sight: Sight) -> None:
    prompt = sight.prompt(sight.library(), 1)
    context = sight.context()
    begun(context, 0, prompt)
    with pytest.raises(UsageError, match="not encoded"):
        context.step([(0, prompt.runs[0].chunk.n_tokens)])


def test_a_step_computes_text_or_one_picture(sight: Sight) -> None:
    prompt = sight.prompt(sight.library(), 1)
    context = sight.context()
    opened(context, 0, prompt, prompt.runs)
    with pytest.raises(UsageError, match="text, or one picture"):
        context.step([(0, prompt.runs[0].start + 1)])


def test_negative_tokens_without_their_picture_are_refused(sight: Sight) -> None:
    prompt = sight.prompt(sight.library(), 1)
    context = sight.context()
    with pytest.raises(UsageError, match="vocabulary"):
        opened(context, 0, prompt)
    with pytest.raises(UsageError, match="where it is"):
        opened(context, 0, prompt, [(0, prompt.runs[0].chunk)])
    with pytest.raises(UsageError, match="described"):
        opened(context, 0, prompt, prompt.runs, n_described=4)


def test_a_projector_of_another_model_is_refused(sight: Sight, tmp_path: Path) -> None:
    from tests.support.tiny_models import write_tiny_llama

    other = _native.Model.load(write_tiny_llama(tmp_path / "other.gguf", n_embd=32))
    with pytest.raises(ModelLoadError, match="not a projector for the model: its rows have"):
        _native.MediaEncoder(other, sight.path, n_threads=1)
    with pytest.raises(ModelLoadError):
        _native.MediaEncoder(sight.model, tmp_path / "other.gguf", n_threads=1)


@pytest.mark.parametrize("kind", ["hunyuanvl", "deepseek4v"])
def test_projectors_whose_pictures_depend_on_their_place_are_refused(sight: Sight, tmp_path: Path, kind: str) -> None:
    projector = write_projector(tmp_path / "mmproj.gguf", kind, {}, {})
    with pytest.raises(ModelLoadError, match="not supported"):
        _native.MediaEncoder(sight.model, projector, n_threads=1)


def test_broken_files_are_refused(sight: Sight) -> None:
    library = sight.library()
    whole = png(20, 20)
    for data in (whole[:50], b"BM" + bytes(60), b"GIF89a" + bytes(30)):
        with pytest.raises(MediaError):
            library.prepare(library.marker, [Media.of(MediaKind.IMAGE, data)])


def test_the_decoding_of_a_file_ends_when_its_flag_is_raised_meanwhile(sight: Sight) -> None:
    # Each scan refines the first coefficient of all blocks, and needs no table for that: together they take minutes.
    refining = b"\xff\xda\0\x08\1\1\0\0\0\x10"
    endless = jpeg_head(4_000, 2_000, marker=0xC2, scans=0)[:-2] + refining * 1_000_000
    flag, ended = _native.CancelFlag(), list[Exception]()

    def decode() -> None:
        try:
            sight.encoder().parts(endless, audio=False, flag=flag, seconds=86_400.0)
        except UsageError as error:
            ended.append(error)

    decoding = threading.Thread(target=decode)
    decoding.start()
    flag.set()
    decoding.join()
    assert [str(error) for error in ended] == ["cancelled"]


def test_a_cancelled_decoding_is_no_picture(sight: Sight) -> None:
    flag = _native.CancelFlag()
    flag.set()
    with pytest.raises(UsageError, match="cancelled"):
        sight.encoder().parts(png(), audio=False, flag=flag, seconds=10.0)
    with pytest.raises(UsageError, match="too long"):
        sight.encoder().parts(noise_png(200, 200, seed=1), audio=False, flag=_native.CancelFlag(), seconds=-1.0)
