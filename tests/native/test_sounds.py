"""Sounds on the compiled core, with a toy projector that hears: decoding, rows, cancels at every node, answers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pyllmcancel import _native
from pyllmcancel.errors import ContextLengthError, UsageError
from pyllmcancel.media.checks import DEFAULT_LIMITS
from pyllmcancel.media.library import MediaLibrary
from pyllmcancel.media.sounds import silence
from pyllmcancel.media.values import Media, MediaKind
from pyllmcancel.pausing import no_pause
from tests.native.test_media import audience_of
from tests.support.media_files import mp3, noise_wav
from tests.support.threads import N_THREADS
from tests.support.toy_projectors import ROWS, write_pair

SECOND, MINUTE = noise_wav(0.9, seed=1), noise_wav(31, seed=1)
QUIET = mp3(100)  # 3.6 s


@dataclass
class Hearing:
    text: Any
    projector: Any

    def encoder(self, **options: Any) -> Any:
        return _native.MediaEncoder(_native.Model.load(self.text), self.projector, n_threads=N_THREADS, **options)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    return Hearing(*write_pair(tmp_path_factory.mktemp("hearing"), "qwen3a"))


def parts_of(encoder: Any, data: bytes, *, flag: Any = None, seconds: float = 600.0) -> list[Any]:
    return list(encoder.parts(data, audio=True, flag=flag or _native.CancelFlag(), seconds=seconds))


def chunks_of(encoder: Any, data: bytes) -> list[Any]:
    return [part for part in parts_of(encoder, data) if not isinstance(part, list)]


def encode(encoder: Any, chunk: Any) -> Any:
    assert encoder.encode(chunk, audience_of(_native.CancelFlag()))
    return chunk.rows().copy()


def test_a_sound_has_rows_for_all_of_its_seconds(hearing: Hearing) -> None:
    encoder = hearing.encoder()
    assert (encoder.has_audio, encoder.has_vision, encoder.sample_rate) == (True, False, 16_000)
    # Each begun second has rows; a window of the encoder has eight of them.
    for data, seconds in ((SECOND, [1]), (MINUTE, [8, 8, 8, 8]), (QUIET, [4])):
        assert [chunk.n_tokens for chunk in chunks_of(encoder, data)] == [ROWS * count for count in seconds]


def test_the_header_of_a_sound_tells_nearly_all_of_its_tokens(hearing: Hearing) -> None:
    encoder = hearing.encoder()
    model = _native.Model.load(hearing.text)
    of_core = {"new_flag": _native.CancelFlag, "image_size": _native.image_size}
    library = MediaLibrary(encoder, model, **of_core, cache_bytes=0, n_batch=512)
    for data, seconds in ((silence(30), 30), (noise_wav(299.9, seed=1, held=400), 299.9), (mp3(2_600), 93.6)):
        sound = Media.of(MediaKind.AUDIO, data)
        n_tokens = len(library.prepare(library.marker, [sound], add_special=False))
        library.check_fit([sound], DEFAULT_LIMITS, n_tokens + 1, no_pause)
        with pytest.raises(ContextLengthError) as refused:
            library.check_fit([sound], DEFAULT_LIMITS, 10, no_pause)
        # A begun half minute is not certain, and two tokens of each may be due to rounding.
        assert n_tokens - ROWS * 31 - 2 * seconds / 30 < refused.value.n_prompt_tokens <= n_tokens


def test_a_sound_at_another_rate_is_the_same_sound(hearing: Hearing) -> None:
    encoder = hearing.encoder()
    tone, fast, other = (
        encode(encoder, chunks_of(encoder, noise_wav(0.9, seed=seed, rate=rate, held=rate // 400))[0]).ravel()
        for seed, rate in ((1, 16_000), (1, 48_000), (2, 16_000))
    )
    assert np.corrcoef(tone, fast)[0, 1] > np.corrcoef(tone, other)[0, 1]


def test_rows_of_a_sound_have_the_same_bits_after_a_cancel_at_every_node(hearing: Hearing) -> None:
    encoder = hearing.encoder(every_node=True)
    known = encode(encoder, chunks_of(encoder, SECOND)[0])
    n_nodes = encoder.polls
    assert n_nodes > 50
    for node in range(1, n_nodes + 1, 3):
        (chunk,) = chunks_of(encoder, SECOND)
        flag = _native.CancelFlag()
        encoder.raise_at(node, flag)
        assert not encoder.encode(chunk, audience_of(flag))
        assert (chunk.encoded, chunk.rows(), encoder.polls) == (False, None, node)
    np.testing.assert_array_equal(encode(encoder, chunks_of(encoder, SECOND)[0]), known)


def test_the_decoding_of_a_sound_ends_with_its_flag_and_its_time(hearing: Hearing) -> None:
    encoder, flag = hearing.encoder(), _native.CancelFlag()
    flag.set()
    for data in (MINUTE, QUIET):
        with pytest.raises(UsageError, match="cancelled"):
            parts_of(encoder, data, flag=flag)
        with pytest.raises(UsageError, match="too long"):
            parts_of(encoder, data, seconds=-1.0)


@pytest.mark.parametrize("data", [b"", b"RIFF....WAVE", SECOND[:44], QUIET[:20]], ids=["none", "wav", "empty", "mp3"])
def test_a_broken_sound_is_refused(hearing: Hearing, data: bytes) -> None:
    with pytest.raises(UsageError, match="it cannot be"):
        parts_of(hearing.encoder(), data)
