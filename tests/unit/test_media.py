"""Prompts with pictures, in an engine on the fake core: tokens, the cache, encoding, and cancels meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyllmcancel.adapters import Adapter
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.errors import ContextLengthError, InvalidRequestError, MediaError, QueueFullError
from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.media.checks import DEFAULT_LIMITS
from pyllmcancel.media.library import MediaLibrary
from pyllmcancel.media.room import MediaRoom
from pyllmcancel.media.sounds import check_sound, silence
from pyllmcancel.media.values import Media, MediaKind, MediaPrompt
from pyllmcancel.pausing import no_pause
from pyllmcancel.shares import Owners
from pyllmcancel.step import StepStatus
from tests.support import fake_native
from tests.support.driver import MEMORIES, Driver, RecordingSink, Stop, Tracked
from tests.support.fake_media import ROWS, bytes_in, png
from tests.unit.test_drafts_in_company import Costs


def picture(content: int = 0, **size: int) -> Media:
    return Media.of(MediaKind.IMAGE, png(content=content, **size))


@contextmanager
def driver(**options: Any) -> Iterator[tuple[Driver, MediaLibrary]]:
    shape = {name: options.pop(name) for name in ("non_causal", "n_pos") if name in options}
    made = Driver(encoder=fake_native.MediaEncoder(None, **shape), **options)
    try:
        yield made, made.engine.media
    finally:
        made.close()


def prompt_of(library: MediaLibrary, *media: Media, before: str = 10 * "see ", owner: str = "") -> MediaPrompt:
    return library.prepare(before + library.marker * len(media) + " what?", media, owner=owner)


def stop_at(made: Driver, node: int) -> Stop:
    stop = Stop()
    made.encoder.on_encode = lambda _chunk, at: stop.here() if at == node else None  # type: ignore[union-attr]
    return stop


def check_answer(tracked: Tracked) -> None:
    assert tracked.sink.ending().finish_reason is FinishReason.LENGTH
    assert tracked.sink.tokens() == tracked.expected


def test_a_picture_is_a_run_of_negative_tokens_of_its_own_content_and_owner() -> None:
    with driver() as (_, library):
        first, again, other = (prompt_of(library, picture(n)) for n in (0, 0, 1))
        foreign = prompt_of(library, picture(0), owner="them")
        assert first == again
        assert len({tuple(prompt) for prompt in (first, other, foreign)}) == 3
        (run,) = first.runs
        assert (run.start, run.end) == (41, 41 + ROWS)
        assert first[run.start : run.end] == run.chunk.tokens
        assert all(token < 0 for token in run.chunk.tokens)


def test_rows_of_a_picture_have_steps_of_their_own() -> None:
    with driver(non_causal=True) as (made, library):
        beside = made.submit("a text", max_tokens=30)
        tracked = made.answered(prompt_of(library, picture()))
        place, ends, beside_rows = 0, [], []
        for step in made.watcher.steps:
            for part in step.sequences:
                if part.request == tracked.request.id and part.phase == "prefill":
                    place += part.n_tokens
                    ends.append(place)
                    beside_rows += [len(step.sequences) - 1] if place == 41 + ROWS else []
        assert ends[ends.index(41) + 1] == 41 + ROWS
        assert beside_rows == [0]
        check_answer(tracked)
        check_answer(beside)


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_engine_whose_every_slot_waits_for_an_encoding_has_idle_moments(memory: str) -> None:
    with driver(parallel=1, spare_seqs=0, **MEMORIES[memory]) as (made, library):
        housekeeping = Stop()
        maintain_idle = made.engine.workload.scheduler.maintain_idle

        def watched() -> bool:
            goes_on = maintain_idle()
            housekeeping.here()
            return goes_on

        made.engine.workload.scheduler.maintain_idle = watched  # type: ignore[method-assign]
        stop = stop_at(made, 2)
        made.gate.open()
        tracked = made.submit(prompt_of(library, picture()), settle=False)
        housekeeping.wait_reached()
        housekeeping.go_on()
        stop.go_on()
        check_answer(tracked)


def test_prompts_of_other_adapters_do_not_wait_for_a_picture_of_a_higher_priority() -> None:
    with driver(adapters=(Adapter(), Adapter())) as (made, library):
        stop = stop_at(made, 2)
        made.gate.open()
        pictured = made.submit(prompt_of(library, picture()), adapters=((0, 1.0),), priority=1, settle=False)
        stop.wait_reached()
        beside = made.submit("a text of more than one token", adapters=((1, 1.0),), settle=False)
        check_answer(beside)
        stop.go_on()
        check_answer(pictured)


def test_a_cancel_leaves_an_encoding_alone_that_another_request_waits_for() -> None:
    with driver() as (made, library):
        stop = stop_at(made, 2)
        made.gate.open()
        prompt = prompt_of(library, picture())
        first = made.submit(prompt, settle=False)
        stop.wait_reached()
        second = made.submit(prompt, settle=False)
        made.engine.registry.wake()
        while second.request.status is RequestStatus.WAITING:
            made.engine.occupancy()
        made.engine.cancel(first.request)
        stop.go_on()
        assert first.sink.ending().finish_reason is FinishReason.CANCELLED
        check_answer(second)


def test_a_picture_in_a_reused_prefix_is_not_encoded_again() -> None:
    with driver() as (made, library):
        prompt = prompt_of(library, picture())
        made.answered(prompt)
        again = made.answered(MediaPrompt([*prompt, *b" and more"], prompt.runs))
        assert again.request.usage().cached_tokens >= len(prompt) - 1
        assert len(made.encoder.encoded) == 1
        other = made.answered(prompt_of(library, picture(1)))
        assert other.request.usage().cached_tokens == 41
        assert other.sink.tokens() == other.expected


@pytest.mark.parametrize("shape", [{"non_causal": True}, {"n_pos": 2}])
def test_a_prefix_never_ends_inside_a_picture_that_looks_ahead_or_shares_positions(shape: dict[str, int]) -> None:
    with driver(**shape) as (made, library):
        prompt = prompt_of(library, picture())
        made.answered(prompt)
        cut = MediaPrompt(prompt[: 41 + ROWS], prompt.runs)  # its last token is the picture's last row
        again = made.answered(cut)
        assert again.request.usage().cached_tokens == 41
        assert again.sink.tokens() == again.expected


def test_choices_share_a_picture_and_a_preempted_one_goes_on() -> None:
    with driver(parallel=2, n_ctx=64) as (made, library):
        tracked = made.answered(prompt_of(library, picture()), n=2, max_tokens=20)
        assert tracked.sink.tokens(0) == tracked.sink.tokens(1) == tracked.expected
        assert len(made.encoder.encoded) == 1


def test_a_picture_that_cannot_be_encoded_fails_its_request_alone() -> None:
    with driver() as (made, library):
        bad = picture(7)
        made.encoder.fails.add(bad.data)
        beside = made.submit("a text")
        failed = made.submit(prompt_of(library, bad), settle=False)
        made.gate.open()
        assert failed.sink.ending().finish_reason is FinishReason.ERROR
        check_answer(beside)


def test_drafts_never_lead_into_a_picture() -> None:
    with driver(draft_sources=("ngram", "past")) as (made, library):
        made.model.answers[b""] = b""
        prompt = prompt_of(library, picture(), before="abcdefgh abcdefgh abcdefgh")
        tracked = made.answered(prompt, max_tokens=24)
        again = made.answered(prompt, max_tokens=24)
        assert tracked.sink.tokens() == tracked.expected == again.sink.tokens()


@pytest.mark.parametrize("company", [1, 2])
def test_drafts_of_a_text_never_lead_into_a_picture_of_a_past_prompt(company: int) -> None:
    text = "abcdefgh abcdefgh abcdefgh"
    divided = {"kv_unified": False, "parallel": 2} if company > 1 else {}
    with driver(draft_sources=("past",), **divided) as (made, library):
        made.engine.workload._drafts._costs = Costs(0.01)  # type: ignore[union-attr, assignment]
        made.answered(prompt_of(library, picture(), before=text))
        made.model.answers[text.encode()] = (text + " and so on, without a picture").encode()
        answers = [made.submit(text, max_tokens=40, settle=False) for _ in range(company)]
        made.run_to_the_end()
        for answer in answers:
            check_answer(answer)


def test_a_picture_in_a_prefix_that_is_lost_is_encoded_after_all() -> None:
    with driver(memory_kind="hybrid", media_cache_mib=0) as (made, library):
        prompt = prompt_of(library, picture())
        first = made.answered(prompt, max_tokens=1)
        again = prompt_of(library, picture())
        longer = made.submit(MediaPrompt([*again, *first.sink.tokens(), *b" more"], again.runs))
        assert longer.request.usage().cached_tokens == len(prompt)
        made.context.next_status.append(StepStatus.ABORTED)  # a hybrid memory is empty after that
        made.run_to_the_end()
        assert longer.sink.tokens() == longer.expected
        assert len(made.encoder.encoded) == 2


@pytest.mark.parametrize("options", [{}, {"prompt_logprobs": True, "n_logprobs": 1}], ids=["tokens", "logprobs"])
def test_plain_tokens_of_a_picture_and_logprobs_of_a_prompt_with_one_are_refused(options: dict[str, Any]) -> None:
    with driver() as (made, library):
        prompt = prompt_of(library, picture())
        params = generation_params(max_tokens=1, **options)
        with pytest.raises(InvalidRequestError):
            made.engine.submit([prompt if options else list(prompt)], params, RecordingSink())


# A prepared picture takes 16 bytes for each of its rows.
ONE = 16 * ROWS


def held(library: MediaLibrary, room: MediaRoom, *media: Media, owner: str = "") -> MediaPrompt:
    return library.prepare(library.marker * len(media), media, owner=owner, room=room)


def test_prompts_have_room_for_their_pictures_until_they_are_dropped() -> None:
    with driver() as (_, library):
        room = MediaRoom(2 * ONE, Owners(several=False))
        first, second = held(library, room, picture(0)), held(library, room, picture(1))
        # One that other prompts have, too, is counted once.
        again = held(library, room, picture(0), picture(1), picture(0))
        with pytest.raises(QueueFullError, match="try again later"):
            held(library, room, picture(2))
        del first, second
        assert bytes_in(room) == 2 * ONE
        runs = again.runs  # which is all that a request keeps
        del again
        assert bytes_in(room) == 2 * ONE
        del runs
        assert bytes_in(room) == 0
        assert held(library, room, picture(2)).runs


def test_an_owner_leaves_room_for_others() -> None:
    with driver() as (_, library):
        room = MediaRoom(4 * ONE, Owners(several=True))
        first = held(library, room, picture(0), picture(1), owner="a")
        with pytest.raises(QueueFullError):
            held(library, room, picture(2), owner="a")
        second = held(library, room, picture(2), owner="b")
        assert len(first.runs + second.runs) == 3


def test_a_prompt_that_fails_or_is_only_counted_takes_no_room() -> None:
    with driver() as (_, library):
        room = MediaRoom(2 * ONE, Owners(several=False))
        with pytest.raises(MediaError):
            held(library, room, picture(0), Media.of(MediaKind.IMAGE, b"<svg/>"))
        assert bytes_in(room) == 0
        library.prepare(library.marker, [picture(0)], room=room, keeps=False)
        assert bytes_in(room) == 0


def test_a_prompt_that_does_not_fit_is_refused_before_all_of_its_pictures_are_decoded() -> None:
    with driver() as (made, library):
        media = [picture(n) for n in range(10)]
        text, decoded = library.marker * len(media), decoded_by(made.encoder)
        with pytest.raises(ContextLengthError, match="at least 80 tokens"):
            library.prepare(text, media, n_ctx=80)
        with pytest.raises(ContextLengthError, match="at least 20 tokens"):
            library.prepare("four" + library.marker * 2 + "four", media[:2], n_ctx=20)
        assert decoded == []
        with pytest.raises(ContextLengthError, match="has 20 tokens"):
            library.prepare("four" + library.marker + "12345678", media[:1], n_ctx=20)
        assert len(decoded) == 1
        counted = library.prepare(text, media, keeps=False)
        assert (len(counted), counted.runs) == (10 * (ROWS + 2), ())


class Hearing(fake_native.MediaEncoder):
    """Ten tokens for each second of a sound, and what a projector puts around it."""

    def parts(self, data: bytes, **options: Any) -> list[Any]:
        rows = super().parts(data, **options)
        return [*rows, [7] * int(10 * check_sound(data, 600.0, no_pause))] if options["audio"] else rows


def decoded_by(encoder: fake_native.MediaEncoder) -> list[bytes]:
    """Return a list to which each file is added that the encoder decodes from now on."""
    decoded: list[bytes] = []
    parts = encoder.parts
    encoder.parts = lambda data, **options: (decoded.append(data), parts(data, **options))[1]  # type: ignore[method-assign]
    return decoded


def test_a_prompt_whose_sounds_do_not_fit_by_their_headers_is_refused_before_one_is_decoded() -> None:
    made = Driver(encoder=Hearing(None))
    library, decoded = made.engine.media, decoded_by(made.encoder)
    sounds = [Media.of(MediaKind.AUDIO, silence(61 + n)) for n in range(3)]
    # Of each half minute two tokens may be due to rounding; of the rest nothing is certain.
    with pytest.raises(ContextLengthError, match="at least 1,788 tokens"):
        library.prepare(library.marker * 3, sounds, n_ctx=1_788)
    with pytest.raises(ContextLengthError, match="at least 1,788 tokens"):
        library.check_fit(sounds, DEFAULT_LIMITS, 1_788, no_pause)
    assert decoded == []
    library.check_fit(sounds, DEFAULT_LIMITS, 1_789, no_pause)
    broken = Media.of(MediaKind.AUDIO, silence(600)[:100])
    library.check_fit([broken], DEFAULT_LIMITS, 10, no_pause)  # `check` finds it
    with pytest.raises(MediaError, match="fewer samples"):
        library.prepare(library.marker, [broken], n_ctx=10)
    made.close()


def test_markers_and_pictures_must_be_as_many() -> None:
    with driver() as (_, library), pytest.raises(InvalidRequestError, match="places"):
        library.prepare("no place", [picture()])
