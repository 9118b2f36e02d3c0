"""Models of the hub on their way to the cache: whole, cut, silent, lying, refused, and when there is no hub."""

import fcntl
import logging
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from pyllmcancel.errors import HubError, LoadCancelled
from pyllmcancel.hub import progress
from pyllmcancel.hub.cache import Repository
from pyllmcancel.hub.fetching import HubModel
from pyllmcancel.hub.names import ModelName
from pyllmcancel.hub.progress import Progress
from tests.support.hub import CHUNK, LIMIT, StandIn, digest_of

pytest_plugins = ("tests.support.hub_fixtures",)

NAME = "user/Model"
CONTENT = random.Random(1).randbytes(3_000_000)
FILE = "model-Q4_K_M.gguf"
PARTS = {f"big-Q8_0-0000{i}-of-00003.gguf": random.Random(i).randbytes(100_000 * i) for i in (1, 2, 3)}


def fetch(
    hub: StandIn | None, name: str = NAME, progress: Callable[[float], bool] = lambda _: True, **options: object
) -> Path:
    endpoint = "http://127.0.0.1:9" if hub is None else hub.url  # the port of "discard": nobody listens
    return HubModel(ModelName.parse(name), endpoint=endpoint, **options).fetch(progress)  # type: ignore[arg-type]


def refused(words: str, what: Any, **options: object) -> str:
    with pytest.raises(HubError, match=words) as error:
        fetch(what, **options)
    return str(error.value)


@pytest.fixture
def hub(hub: StandIn) -> StandIn:
    hub.add(NAME, {FILE: CONTENT})
    return hub


def partial(content: bytes = CONTENT) -> Path:
    blob = Repository(NAME).blob(digest_of(content))
    return blob.with_name(f"{blob.name}.incomplete")


def test_a_model_comes_whole_and_is_not_asked_for_again(hub: StandIn) -> None:
    hub.add(NAME, {FILE: CONTENT, "README.md": b"read me"})
    path = fetch(hub)
    assert (path.name, path.read_bytes()) == (FILE, CONTENT)
    assert not partial().exists()
    hub.asked.clear()
    assert fetch(hub) == path
    assert [asked.path for asked in hub.asked] == [f"/api/models/{NAME}?blobs=true"]


def test_a_slow_hub_is_waited_for(hub: StandIn) -> None:
    taken, seen = threading.Semaphore(0), [0.0]

    def progress(fraction: float) -> bool:
        if fraction > seen[-1]:
            seen.append(fraction)
            taken.release()
        return True

    hub.faults.append(hub.slow(600_000, taken))
    assert fetch(hub, progress=progress).read_bytes() == CONTENT
    assert len(seen) >= 5
    assert hub.contents_asked == [None]


def test_a_cut_download_goes_on_where_it_was_cut(hub: StandIn) -> None:
    hub.faults.extend([hub.cut(1_000_000), hub.cut(1_000_000)])
    assert fetch(hub).read_bytes() == CONTENT
    assert hub.contents_asked == [None, "bytes=1000000-", "bytes=2000000-"]


def test_one_that_is_given_up_goes_on_at_the_next_start(hub: StandIn) -> None:
    hub.faults.append(hub.silent(1_000_000))
    with pytest.raises(LoadCancelled):
        fetch(hub, progress=lambda _: not partial().exists() or partial().stat().st_size < 1_000_000)
    assert partial().stat().st_size == 1_000_000
    hub.released.set()
    assert fetch(hub).read_bytes() == CONTENT
    assert hub.contents_asked[0] is None
    assert set(hub.contents_asked[1:]) == {"bytes=1000000-"}


def test_a_hub_without_ranges_sends_all_of_it_again(hub: StandIn) -> None:
    hub.faults.extend([hub.cut(1_000_000), hub.no_ranges])
    assert fetch(hub).read_bytes() == CONTENT


@pytest.mark.parametrize(("there", "asked"), [(CONTENT + b"more", [None]), (CONTENT, [])], ids=["more", "whole"])
def test_more_than_the_file_is_begun_anew_a_whole_one_checked(hub: StandIn, there: bytes, asked: list[None]) -> None:
    partial().parent.mkdir(parents=True)
    partial().write_bytes(there)
    assert fetch(hub).read_bytes() == CONTENT
    assert hub.contents_asked == asked


@pytest.mark.parametrize(
    ("served", "words"),
    [
        (b"x" + CONTENT[1:], r"has a wrong digest: .* not kept"),
        (CONTENT + b"more", "should be of size 3000000"),
    ],
    ids=["another digest", "longer than said"],
)
def test_other_content_is_not_kept(hub: StandIn, served: bytes, words: str) -> None:
    hub.add(NAME, {FILE: CONTENT}, served={FILE: served})
    refused(words, hub)
    assert len(served) > len(CONTENT) or not partial().exists()
    assert Repository(NAME).find(ModelName(NAME)) is None
    hub.repos[NAME].served.clear()
    assert fetch(hub).read_bytes() == CONTENT


def test_a_small_file_has_a_digest_of_gits_and_is_checked_by_it(hub: StandIn) -> None:
    small = b"small"
    hub.add(NAME, {FILE: small})
    partial(small).parent.mkdir(parents=True)
    partial(small).write_bytes(b"smell")
    refused(r"has a wrong digest: .* not kept", hub)
    assert fetch(hub).read_bytes() == small


def test_a_silent_hub_is_told_and_what_came_is_kept(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.faults.extend([hub.silent(CHUNK)] + [hub.silent(0)] * 8)
    refused(r"cannot be reached, or broke off: .*not in the cache", hub)
    assert partial().stat().st_size == CHUNK


def test_a_hub_that_does_not_answer_the_first_question_is_told(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
    hub.mute = True
    refused(r"broke off: .*; and user/Model is not in the cache", hub)


def test_a_divided_model_comes_in_all_its_parts(hub: StandIn) -> None:
    hub.add(NAME, PARTS | {FILE: CONTENT})
    first = fetch(hub, f"{NAME}:q8_0")
    assert {path.name: path.read_bytes() for path in first.parent.iterdir()} == PARTS
    assert first.name == min(PARTS)


def test_a_divided_model_of_which_a_part_is_missing_is_not_served(hub: StandIn) -> None:
    hub.add(NAME, PARTS)
    last = max(PARTS)
    hub.repos[NAME].served[last] = b"x" + PARTS[last][1:]
    refused(last, hub)
    refused("not in the cache", hub, offline=True)


def test_offline_nothing_is_asked(hub: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    refused("--offline; and user/Model is not in the cache", hub, offline=True)
    path = fetch(hub)
    hub.asked.clear()
    with caplog.at_level(logging.INFO):
        assert fetch(hub, offline=True) == path
    assert hub.asked == []
    assert f"serving {FILE} from the cache, without a check for a newer one (--offline)" in caplog.text


def test_a_newer_model_takes_the_place_of_the_cached_one(hub: StandIn) -> None:
    old = fetch(hub)
    newer = CONTENT[::-1]
    hub.repos[NAME].files = {FILE: newer}
    hub.faults.extend([hub.cut(1000), hub.busy])
    assert fetch(hub) == old, "the newer one did not come"
    new = fetch(hub)
    assert new.read_bytes() == newer
    assert fetch(None) == new
    hub.repos[NAME].files = {FILE: CONTENT}
    hub.asked.clear()
    assert fetch(hub).read_bytes() == CONTENT
    assert hub.contents_asked == [], "its content is there, of the older commit"


@pytest.mark.parametrize(
    ("options", "token", "words"),
    [
        ({"token": "mine"}, None, "no user/Model on .* or it is private: .* give --hf-token, or set HF_TOKEN"),
        ({"token": "mine"}, "other", "does not accept the token: make a new one"),
        (
            {"token": "mine", "gated": True},
            None,
            "user/Model is gated: accept its terms on .*/user/Model .* give --hf-token",
        ),
        ({"token": "mine", "gated": True}, "other", "is gated: .* the token that was sent has no access"),
        (None, None, "there is no user/Model on"),
        (None, "mine", "there is no user/Model on"),
    ],
)
def test_each_refusal_helps(hub: StandIn, options: dict[str, object] | None, token: str | None, words: str) -> None:
    hub.repos.clear()
    if options is not None:
        hub.add(NAME, {FILE: CONTENT}, **options)
    refused(words, hub, token=token)
    assert hub.contents_asked == []


def test_a_token_that_is_none_is_not_shown(hub: StandIn) -> None:
    error = refused("the token contains a blank, or another character", hub, token="secret\n")
    assert "secret" not in error
    assert hub.asked == []


def test_other_refusals_are_told_in_the_hubs_words(hub: StandIn) -> None:
    for status, headers, words in (
        (403, {"X-Error-Message": "your region"}, r"no access to user/Model .*\(your region\)"),
        (418, {}, r"no access to user/Model .*\(status 418\)"),
        (404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "gone"}, r"no access to user/Model .*\(gone\)"),
        (429, {"Retry-After": "1"}, "cannot answer now .*try again later"),
        (200, {"Content-Type": "text/html"}, "an invalid answer"),
    ):
        hub.refusal = (status, headers)
        refused(words, hub)


def test_a_refusal_of_what_is_cached_says_so(hub: StandIn) -> None:
    fetch(hub)
    hub.repos.clear()
    refused(r"there is no user/Model .* A copy is in the cache: --offline serves it", hub)


def test_a_token_goes_to_the_hub_and_not_to_where_its_files_lie(hub: StandIn) -> None:
    hub.add(NAME, {FILE: CONTENT}, token="mine")
    assert fetch(hub, token="mine").read_bytes() == CONTENT
    assert [asked.token for asked in hub.asked] == ["mine", "mine", None]


def test_names_that_would_lead_out_of_the_cache_are_not_there(hub: StandIn) -> None:
    hub.add(NAME, {"../../m-Q4_K_M.gguf": CONTENT, "/m.gguf": CONTENT})
    refused("no GGUF file", hub)


def test_without_room_it_does_not_begin(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12, 1000))
    refused(r"needs 3.0 MB more, but .* has 1.0 kB left", hub)
    assert hub.contents_asked == []


def test_of_two_that_want_it_one_waits(hub: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    found: list[Path] = []
    waiting = threading.Event()

    class Waiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "another process" in record.getMessage():
                waiting.set()

    logger, handler = logging.getLogger("pyllmcancel.hub"), Waiting()
    logger.addHandler(handler)
    other = threading.Thread(target=lambda: found.append(fetch(hub)))
    try:
        with caplog.at_level(logging.INFO), Repository(NAME).locked(digest_of(CONTENT)):
            other.start()
            assert waiting.wait(LIMIT)
            assert hub.contents_asked == []
    finally:
        other.join(LIMIT)
        logger.removeHandler(handler)
    assert found[0].read_bytes() == CONTENT


def test_the_lock_is_the_one_of_the_hubs_own_library(hub: StandIn, cache: Path) -> None:
    fetch(hub)
    (lock,) = (cache / ".locks" / "models--user--Model").iterdir()
    assert lock.name == f"{digest_of(CONTENT)}.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("has_one", [False, True])
def test_a_projector_comes_with_its_model_if_it_has_one(hub: StandIn, has_one: bool) -> None:
    if has_one:
        hub.add(NAME, {FILE: CONTENT, "mmproj-model-f16.gguf": b"eyes", "other/mmproj-x.gguf": b"others"})
    model = HubModel(ModelName.parse(NAME), endpoint=hub.url)
    path = model.fetch(lambda _: True)
    found = model.fetch_projector(lambda _: True)
    assert found == (path.with_name("mmproj-model-f16.gguf") if has_one else None)
    assert not has_one or found.read_bytes() == b"eyes"
    assert HubModel(ModelName.parse(NAME), offline=True).fetch_projector(lambda _: True) == found


def test_there_are_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = Progress("user/model")
    with caplog.at_level(logging.INFO):
        lines.show(1_000_000_000, 4_000_000_000)  # what an earlier download left
        lines.show(1_000_000_001, 4_000_000_000)
        now[0] += 6
        lines.show(1_060_000_000, 4_000_000_000)
        now[0] += 6
        lines.show(1_060_000_000, 4_000_000_000)
    assert [record.message for record in caplog.records] == [
        "downloading user/model: 1.1 GB of 4.0 GB (26 %), 10.0 MB/s, 5 min left",
        "downloading user/model: 1.1 GB of 4.0 GB (26 %), 0 B/s",
    ]
