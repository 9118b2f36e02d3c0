"""Models that are known by a name: from the hub, from PyPI, from the cache, and when something is wrong."""

from __future__ import annotations

import argparse
import errno
import logging
import re
import shutil
import threading
from pathlib import Path

import pytest

from pyllmcancel.cli import command_parser, main
from pyllmcancel.cli.serve import engine_config, model_to_fetch, sampling_params
from pyllmcancel.errors import HubError, LoadCancelled, UsageError
from pyllmcancel.hub import download
from pyllmcancel.hub.known import KNOWN, HubPlace, KnownModel, models_folder
from pyllmcancel.hub.known_fetching import NamedModel
from pyllmcancel.models import PACKAGED_NAME
from pyllmcancel.system import lock
from tests.support.hub import LIMIT, HubHandler, StandIn
from tests.support.package_index import Index, known
from tests.support.small_model import CONTENT, NOBODY, WHEEL, fetch, in_cache, paths, put_on_hub

pytest_plugins = ("tests.support.hub_fixtures",)


def test_the_hub_is_asked_first(hub: StandIn, small: KnownModel) -> None:
    put_on_hub(hub)
    models_folder().mkdir(parents=True)
    (models_folder() / f"{WHEEL}.incomplete").touch()
    assert fetch(small).read_bytes() == CONTENT
    assert in_cache() == [small.path.name], "what an earlier start left is deleted"
    assert paths(hub)[:2] == [
        f"/api/models/user/Small/revision/{'1' * 40}?blobs=true",
        f"/user/Small/resolve/{'1' * 40}/small-Q8_0.gguf",
    ]
    assert not any("simple" in path for path in paths(hub))


def test_a_cached_model_is_asked_of_nobody(hub: StandIn, index: Index, small: KnownModel) -> None:
    path = fetch(small)
    hub.close()
    index.close()
    assert fetch(small) == fetch(small, offline=True) == path


def test_without_the_model_on_the_hub_it_comes_from_a_wheel(
    hub: StandIn, small: KnownModel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert fetch(small).read_bytes() == CONTENT
    assert "it is downloaded from PyPI" in caplog.text
    assert in_cache() == [small.path.name], "the wheel is deleted"
    assert paths(hub)[1:] == ["/simple/small-model/", f"/files/{WHEEL}"]


def test_without_a_hub_it_comes_from_a_wheel(
    small: KnownModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    with caplog.at_level(logging.INFO):
        assert fetch(small).read_bytes() == CONTENT
    assert "127.0.0.1 cannot be reached: [Errno 111] Connection refused; it is downloaded from PyPI" in caplog.text


@pytest.mark.parametrize("answer", [b"{}", b"[]", b'{"siblings": [1]}', b"<html>"])
def test_an_answer_that_no_hub_gives_is_no_answer(
    hub: StandIn, small: KnownModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    monkeypatch.setattr(HubHandler, "refuse", lambda handler, _: handler.reply(200, answer))
    hub.add("user/Small", {"small-Q8_0.gguf": CONTENT}, token="private")
    with caplog.at_level(logging.INFO):
        assert fetch(small).read_bytes() == CONTENT
    assert re.search(
        r"(gives an invalid answer about user/Small|has no small-Q8_0.gguf of user/Small with the digest \w+);"
        " it is downloaded from PyPI",
        caplog.text,
    )


def test_another_file_on_the_hub_is_not_downloaded(
    hub: StandIn, small: KnownModel, caplog: pytest.LogCaptureFixture
) -> None:
    put_on_hub(hub, CONTENT[::-1])
    with caplog.at_level(logging.INFO):
        assert fetch(small).read_bytes() == CONTENT
    assert f"has no small-Q8_0.gguf of user/Small with the digest {small.sha256}; it is" in caplog.text
    assert not any("resolve" in path for path in paths(hub))


def test_wrong_content_of_the_hub_is_not_kept(hub: StandIn, small: KnownModel) -> None:
    put_on_hub(hub)
    hub.repos["user/Small"].served["small-Q8_0.gguf"] = b"x" + CONTENT[1:]
    assert fetch(small).read_bytes() == CONTENT
    assert in_cache() == [small.path.name]


def test_a_file_in_several_wheels_is_joined(index: Index) -> None:
    parts = [CONTENT[:1_000_000], CONTENT[1_000_000:1_500_000], CONTENT[1_500_000:]]
    wheels = [index.add(f"part{i}-1.0-py3-none-any.whl", f"part{i}/data", part) for i, part in enumerate(parts)]
    assert fetch(known(CONTENT, *wheels, on_hub=False)).read_bytes() == CONTENT


def test_a_cut_download_goes_on_where_it_was_cut(hub: StandIn, small: KnownModel) -> None:
    hub.faults.extend([hub.cut(1_000_000), hub.cut(1_000_000)])
    assert fetch(small).read_bytes() == CONTENT
    assert [asked.range for asked in hub.asked[2:]] == [None, "bytes=1000000-", "bytes=2000000-"]


def test_one_that_is_given_up_goes_on_at_the_next_start(hub: StandIn, small: KnownModel) -> None:
    hub.faults.append(hub.silent(1_000_000))
    with pytest.raises(LoadCancelled):
        NamedModel(small).fetch(lambda fraction: fraction == 0)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "hub download")
    hub.released.set()
    thread.join(LIMIT)
    assert in_cache() == [f"{WHEEL}.incomplete"]
    assert fetch(small).read_bytes() == CONTENT
    assert hub.asked[-1].range == "bytes=1000000-"


def test_with_nobody_in_reach_one_line_says_so(small: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_ENDPOINT", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, NOBODY)
    with pytest.raises(HubError, match=r"^small cannot be downloaded: 127.0.0.1 cannot be reached: .*refused$"):
        fetch(small)
    assert in_cache() == []


def test_a_disk_without_room_is_reported_before_a_byte_comes(
    hub: StandIn, small: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12, 5_000_000))
    with pytest.raises(HubError, match=r"^the model cannot be stored: small needs 6.0 MB more, but .* 5.0 MB left$"):
        fetch(small)
    assert hub.contents_asked == []


def test_a_disk_that_fills_up_is_reported_once_and_what_came_is_kept(
    hub: StandIn, small: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write(out: object, piece: bytes) -> None:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(out.write(piece))  # type: ignore[attr-defined]

    monkeypatch.setattr(download, "_write", write)
    put_on_hub(hub)
    with pytest.raises(HubError, match=r"^the model cannot be stored: No space left on device$"):
        fetch(small)
    assert in_cache() == [f"{small.path.name}.incomplete"]
    monkeypatch.undo()


def test_a_folder_that_cannot_be_made_is_reported(
    small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(HubError, match=r"the model cannot be stored: .*/file/pyllmcancel.*: Not a directory"):
        fetch(small)


def test_of_two_that_want_it_one_waits(hub: StandIn, small: KnownModel, caplog: pytest.LogCaptureFixture) -> None:
    found: list[Path] = []
    waits = threading.Event()

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "another process is downloading small: waiting for it" in record.getMessage():
                waits.set()

    logger, handler = logging.getLogger("pyllmcancel.hub"), Waits()
    logger.addHandler(handler)
    other = threading.Thread(target=lambda: found.append(fetch(small)))
    models_folder().mkdir(parents=True)
    try:
        with caplog.at_level(logging.INFO), small.path.with_suffix(".lock").open("w") as file:
            lock(file, lambda: None)
            other.start()
            assert waits.wait(LIMIT)
            small.path.write_bytes(CONTENT)
    finally:
        other.join(LIMIT)
        logger.removeHandler(handler)
    assert (found, hub.asked) == ([small.path], [])


def test_two_at_once_download_it_once(hub: StandIn, small: KnownModel) -> None:
    found: list[Path] = []
    both = [threading.Thread(target=lambda: found.append(fetch(small))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(LIMIT)
    assert found == [small.path] * 2
    assert paths(hub).count(f"/files/{WHEEL}") == 1


def test_a_file_of_another_size_is_not_loaded(small: KnownModel, caplog: pytest.LogCaptureFixture) -> None:
    models_folder().mkdir(parents=True)
    small.path.write_bytes(CONTENT[:1000])
    with pytest.raises(HubError, match=r"--offline; and small is not in the cache"):
        fetch(small, offline=True)
    assert fetch(small).read_bytes() == CONTENT
    assert "does not have its 3,000,000 bytes: it is downloaded again" in caplog.text


def test_another_version_in_the_cache_is_reported_and_not_loaded(
    small: KnownModel, caplog: pytest.LogCaptureFixture
) -> None:
    models_folder().mkdir(parents=True)
    older = models_folder() / "small-0123456789ab.gguf"
    older.write_bytes(CONTENT)
    (models_folder() / "small-er-0123456789ab.gguf").write_bytes(CONTENT)
    with pytest.raises(HubError, match=r"--offline; and small is not in the cache, .* \(another version is: "):
        fetch(small, offline=True)
    with caplog.at_level(logging.INFO):
        assert fetch(small) == small.path
    assert [record.message for record in caplog.records if "another version" in record.message] == [
        f"the cache has another version of small, which is not served: {older}"
    ]


def test_every_name_of_the_table_is_pinned() -> None:
    digests = [digest for model in KNOWN.values() for digest in (model.sha256, *(w.file.etag for w in model.wheels))]
    assert all(len(bytes.fromhex(digest)) == 32 for digest in digests)
    assert len(set(digests)) == len(digests)
    places = [model.place for model in KNOWN.values() if model.place is not None]
    assert all(isinstance(place, HubPlace) and len(bytes.fromhex(place.commit)) == 20 for place in places)
    assert all(name == model.name and "/" not in name and "." not in name for name, model in KNOWN.items())


@pytest.mark.parametrize("option", [(), ("--model",)])
def test_a_name_is_a_file_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    def given(*name: str) -> argparse.Namespace:
        found: argparse.Namespace = command_parser().parse_args(["serve", "--offline", *option, *name])
        return found

    monkeypatch.chdir(tmp_path)
    by_name = given("smollm2")
    assert model_to_fetch(by_name) == NamedModel(KNOWN["smollm2"], offline=True)
    assert (engine_config(by_name).model, engine_config(by_name).alias) == (None, "smollm2")
    (tmp_path / "smollm2").mkdir()
    assert model_to_fetch(by_name) is not None, "a folder is no model"
    (tmp_path / "smollm2").rmdir()
    (tmp_path / "smollm2").write_bytes(b"GGUF")
    assert model_to_fetch(by_name) is None
    assert engine_config(by_name).model == Path("smollm2")
    packaged = given(PACKAGED_NAME)
    assert (model_to_fetch(packaged), engine_config(packaged).model) == (None, None)
    with pytest.raises(UsageError, match=r"there is no file other.gguf$"):
        engine_config(given("other.gguf"))


@pytest.mark.parametrize(
    ("given", "temperature", "top_p"),
    [
        (("smollm2",), 0.2, 0.9),
        (("smollm2", "--temp", "0.8"), 0.8, 0.9),
        (("smollm2", "--temp", "1", "--top-p", "0.95"), 1.0, 0.95),
        (("gemma3-270m",), 0.8, 0.95),
        ((), 0.8, 0.95),
    ],
)
def test_a_named_model_samples_as_its_authors_advise_unless_an_option_says_otherwise(
    given: tuple[str, ...], temperature: float, top_p: float
) -> None:
    params = sampling_params(command_parser().parse_args(["serve", *given]))
    assert (params.temperature, params.top_p) == (temperature, top_p)


def test_the_command_downloads_and_prints_the_path(
    small: KnownModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(KNOWN, "small", small)
    assert main(["models"]) == 0
    assert "to download Small 1B, for tests (3.0 MB): pyllmcancel models get small" in capsys.readouterr().err
    assert main(["models", "get", "small"]) == 0
    assert capsys.readouterr().out == f"{small.path}\n"
    assert main(["models"]) == 0
    told = capsys.readouterr()
    assert ["small", "Q8_0", "3.0", "MB", str(small.path)] in [line.split() for line in told.out.splitlines()]
    assert "get small" not in told.err


def test_the_command_says_in_a_line_what_failed(
    small: KnownModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(KNOWN, "small", small)
    for name in ("HF_ENDPOINT", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, NOBODY)
    assert main(["models", "get", "small"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("pyllmcancel: small cannot be downloaded: 127.0.0.1")
    with pytest.raises(SystemExit):
        main(["models", "get", "smalls"])
    assert "did you mean small?" in capsys.readouterr().err


def test_the_command_can_be_interrupted(
    small: KnownModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(KNOWN, "small", small)
    monkeypatch.setattr(NamedModel, "fetch", interrupted)
    assert main(["models", "get", "small"]) == 130
    assert "the next start resumes the download" in capsys.readouterr().err
