"""``serve FILE.gguf`` and ``serve USER/MODEL:QUANT``, and files that are no models."""

import argparse
import os
from pathlib import Path

import pytest

from pyllmcancel.cli import command_parser, main
from pyllmcancel.cli.configuration import server_config
from pyllmcancel.cli.model_argument import model_to_fetch
from pyllmcancel.hub.fetching import HubModel


def parsed(*given: str) -> argparse.Namespace:
    found: argparse.Namespace = command_parser().parse_args(["serve", *given])
    model_to_fetch(found)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.mark.parametrize("before", [(), ("--port", "0"), ("--mlock",)])
@pytest.mark.parametrize("after", [(), ("--alias", "name"), ("-fa",)])
def test_a_file_is_served_without_an_option(model: Path, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    assert server_config(parsed(*before, str(model), *after)).engine.model == model


@pytest.mark.parametrize("name", ["user/model", "user/model:Q4_K_M"])
def test_a_model_of_the_hub_is_served_without_an_option(name: str) -> None:
    arguments = parsed(name, "--offline")
    found = model_to_fetch(arguments)
    assert isinstance(found, HubModel)
    assert str(found.name) == name
    assert server_config(arguments).engine.alias == name


def test_a_path_that_exists_is_not_looked_for_in_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("user/model").touch()
    assert parsed("user/model").model == Path("user/model")
    assert parsed("user/other.gguf").model == Path("user/other.gguf")


@pytest.mark.parametrize("path", ["./m.gguf", "sub//m.gguf", "sub/../m.gguf"])
def test_a_path_may_be_written_in_any_way(path: str) -> None:
    assert parsed(path).model == Path(path)


def test_the_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLMCANCEL_MODEL", "/x/y.gguf")
    monkeypatch.setenv("PYLLMCANCEL_HF_REPO", "some/thing")
    assert (parsed("a.gguf").model, parsed("a.gguf").hf_repo) == (Path("a.gguf"), None)
    assert (parsed("--offline", "a/b").model, parsed("--offline", "a/b").hf_repo) == (None, "a/b")


@pytest.mark.parametrize(
    "given", ["a.gguf --model b.gguf", "--model b.gguf a.gguf", "a.gguf -hf a/b", "-hf a/b a.gguf", "a/b -hf c/d"]
)
def test_two_models_are_refused(capsys: pytest.CaptureFixture[str], given: str) -> None:
    try:
        status: object = main(["serve", *given.split()])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_directory_is_refused_with_the_files_that_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"pyllmcancel: {tmp_path} is a directory, not a GGUF file; it has no GGUF file\n"
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    assert main(["serve", "--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("it has a.gguf, b.gguf\n")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04", "is not a GGUF file: it begins with b'PK"),
        (b"GG", "is not a GGUF file: it begins with b'GG'"),
    ],
)
def test_a_file_that_is_not_gguf_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, part: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert main(["serve", str(path)]) == 2
    text = capsys.readouterr().err
    assert text.startswith(f"pyllmcancel: {path} {part}")
    assert text.count("\n") == 1


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert main(["serve", str(tmp_path / "pipe.gguf")]) == 2
    assert "is not a regular file" in capsys.readouterr().err
