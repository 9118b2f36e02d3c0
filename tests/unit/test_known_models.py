"""The model that is known by a name: from a wheel of an index, from the cache, and when something is wrong."""

import argparse
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.cli import command_parser, main
from pyllmcancel.cli.configuration import engine_config, sampling_params
from pyllmcancel.cli.model_argument import model_to_fetch
from pyllmcancel.errors import HubError, LoadCancelled, UsageError
from pyllmcancel.hub import wheels
from pyllmcancel.hub.known import KNOWN, KnownModel, models_folder
from pyllmcancel.hub.wheels import NamedModel
from pyllmcancel.models import PACKAGED_NAME
from tests.support.hub import LIMIT, StandIn
from tests.support.package_index import Index, known
from tests.support.small_model import CONTENT, NOBODY, WHEEL, fetch, in_cache, paths

pytest_plugins = ("tests.support.hub_fixtures",)


def refused(words: str, what: Any, **options: object) -> str:
    with pytest.raises(HubError, match=words) as error:
        fetch(what, **options)
    return str(error.value)


def test_a_cached_model_is_asked_of_nobody(hub: StandIn, index: Index, small: KnownModel) -> None:
    path = fetch(small)
    hub.close()
    index.close()
    assert fetch(small) == fetch(small, offline=True) == path


def test_it_comes_from_a_wheel_which_is_deleted(hub: StandIn, small: KnownModel) -> None:
    assert fetch(small).read_bytes() == CONTENT
    assert in_cache() == [small.path.name]
    assert paths(hub) == ["/simple/small-model/", f"/files/{WHEEL}"]


def test_a_cut_download_goes_on_where_it_was_cut(hub: StandIn, small: KnownModel) -> None:
    hub.faults.extend([hub.cut(1_000_000), hub.cut(1_000_000)])
    assert fetch(small).read_bytes() == CONTENT
    assert [asked.range for asked in hub.asked[1:]] == [None, "bytes=1000000-", "bytes=2000000-"]


def test_one_that_is_given_up_goes_on_at_the_next_start(hub: StandIn, small: KnownModel) -> None:
    hub.faults.append(hub.silent(1_000_000))
    with pytest.raises(LoadCancelled):
        NamedModel(small).fetch(lambda fraction: fraction == 0)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "hub download")
    hub.released.set()
    thread.join(LIMIT)
    assert in_cache() == [f"{WHEEL}.incomplete"]
    size = (models_folder() / f"{WHEEL}.incomplete").stat().st_size
    assert fetch(small).read_bytes() == CONTENT
    assert hub.asked[-1].range == f"bytes={size}-"


def test_an_impossible_folder_is_reported(small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refused(r"the model cannot be stored: .*/file/pyllmcancel.*: Not a directory", small)


def test_two_at_once_download_it_once(hub: StandIn, small: KnownModel) -> None:
    found: list[Path] = []
    both = [threading.Thread(target=lambda: found.append(fetch(small))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(LIMIT)
    assert found == [small.path] * 2
    assert paths(hub).count(f"/files/{WHEEL}") == 1


def test_a_file_of_another_size_is_not_loaded(small: KnownModel) -> None:
    models_folder().mkdir(parents=True)
    small.path.write_bytes(CONTENT[:1000])
    refused(r"--offline; and small is not in the cache", small, offline=True)
    assert fetch(small).read_bytes() == CONTENT


def test_the_name_is_pinned() -> None:
    for name, model in KNOWN.items():
        assert name == model.name
        assert [len(bytes.fromhex(digest)) for digest in (model.sha256, model.wheel.sha256)] == [32, 32]


@pytest.mark.parametrize("option", [(), ("--model",)])
def test_a_name_may_be_that_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]) -> None:
    def given(*name: str) -> argparse.Namespace:
        return command_parser().parse_args(["serve", "--offline", *option, *name])

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
    monkeypatch.setenv("PIP_INDEX_URL", NOBODY)
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


# -- the index ---------------------------------------------------------------------------------------------------------


def test_a_silent_index_is_reported(hub: StandIn, small: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(wheels, "RETRIES", 1)
    hub.faults.extend([hub.silent(1000)] + [hub.silent(0)] * 3)
    refused(r"127.0.0.3 cannot be reached, or broke off: timed out", small)
    assert (models_folder() / f"{WHEEL}.incomplete").stat().st_size == 1000


def test_an_index_that_is_busy_or_whose_page_is_cut_is_asked_again(hub: StandIn, small: KnownModel) -> None:
    hub.page_faults.extend([lambda handler, page: handler.send(page, 20), hub.busy])
    hub.faults.extend([hub.busy, hub.cut(1_000_000), hub.no_ranges])
    assert fetch(small).read_bytes() == CONTENT


def test_an_index_without_the_wheel_says_so(index: Index, small: KnownModel) -> None:
    index.wheels["small_model-2.0-py3-none-any.whl"] = index.wheels.pop(WHEEL)
    refused(f"127.0.0.3 has no {WHEEL}", small)
    index.wheels.clear()
    refused(r"127.0.0.3 refuses the file: status 404", small)


@pytest.mark.parametrize("url", ["http://me:secret@[::1", "http://me:secret@no..name/simple", "file:///me:secret"])
def test_an_address_that_is_none_is_reported_without_its_account(
    small: KnownModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", url)
    error = refused(r"^small cannot be downloaded: ", small)
    assert "secret" not in error + caplog.text


@pytest.mark.parametrize("link", ["file:///etc/passwd/", "ftp://host/"])
def test_a_link_of_another_kind_is_not_followed(small: KnownModel, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    monkeypatch.setattr(wheels, "url_of", lambda _: f"{link}{WHEEL}")
    refused(r"only addresses of http and https are fetched", small)


@pytest.mark.parametrize(
    ("link", "url"),
    [
        ("../../files/", "http://me:se%20cret@index/files/"),
        ("/files/", "http://me:se%20cret@index/files/"),
        ("http://INDEX/files/", "http://me:se%20cret@INDEX/files/"),
        ("http://other:one@index/files/", "http://other:one@index/files/"),
        ("https://index/files/", "https://index/files/"),
        ("http://index:81/files/", "http://index:81/files/"),
        ("http://files.index/", "http://files.index/"),
    ],
)
def test_the_account_of_an_index_goes_to_addresses_of_the_same_host_only(
    small: KnownModel, monkeypatch: pytest.MonkeyPatch, link: str, url: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:se%20cret@index/simple")
    monkeypatch.setattr(wheels, "received", lambda _: [f'<a href="{link}{WHEEL}#sha256=0">wheel</a>'.encode()])
    assert wheels.url_of(small.wheel) == f"{url}{WHEEL}"


def test_an_account_is_sent_to_the_index_only_and_is_never_shown(
    hub: StandIn, index: Index, small: KnownModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("://", "://me:se%20cret@"))
    hub.faults.append(lambda handler, _: handler.reply(302, b"", Location=hub.url + "/elsewhere"))
    with caplog.at_level(logging.INFO):
        error = refused("refuses the file: status 401", small)
    sent = {asked.path: asked.token for asked in hub.asked}
    assert sent["/simple/small-model/"] == sent[f"/files/{WHEEL}"] == "Basic bWU6c2UgY3JldA=="
    assert sent["/elsewhere"] is None
    assert "cret" not in error + caplog.text


def test_a_wheel_with_a_wrong_digest_is_not_kept(index: Index, small: KnownModel) -> None:
    index.wheels[WHEEL] = b"x" + index.wheels[WHEEL][1:]
    refused(rf"{WHEEL} has a wrong digest: .* not kept", small)
    assert in_cache() == []


def test_a_member_with_a_wrong_digest_is_not_kept(index: Index) -> None:
    model = known(CONTENT, index.add(WHEEL, "small_model/small.gguf", CONTENT[::-1]))
    refused(r"the file of small has a wrong digest", model)
    assert in_cache() == []


def test_a_wheel_that_was_damaged_in_the_cache_is_fetched_again_by_the_next_start(small: KnownModel) -> None:
    models_folder().mkdir(parents=True, exist_ok=True)
    (models_folder() / WHEEL).write_bytes(b"PK damaged")
    refused(f"{WHEEL} was damaged, and is deleted", small)
    assert fetch(small).read_bytes() == CONTENT
