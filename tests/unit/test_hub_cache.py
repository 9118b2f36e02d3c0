"""The cached models, as `pyllmcancel models` lists them."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from pyllmcancel.cli import main
from pyllmcancel.hub.cache import Repository, cached_models
from pyllmcancel.models import packaged_model_path

FILES = ("m-Q8_0.gguf", "deep/m-Q4_K_M-00001-of-00002.gguf", "deep/m-Q4_K_M-00002-of-00002.gguf", "mmproj-m-F16.gguf")
OLD, NEW = "1" * 40, "2" * 40


def put(repo: Repository, commit: str, path: str, content: bytes) -> Path:
    etag = hashlib.sha1(f"{commit}/{path}".encode(), usedforsecurity=False).hexdigest()
    repo.blob(etag).parent.mkdir(parents=True, exist_ok=True)
    repo.blob(etag).write_bytes(content)
    return repo.install(commit, path, etag)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hub"


@pytest.fixture
def filled(cache: Path) -> Repository:
    repo = Repository("user/Model-GGUF")
    for file in FILES:
        put(repo, NEW, file, b"x" * 1000)
    put(repo, OLD, "m-F16.gguf", b"old")
    put(repo, OLD, "m-Q8_0.gguf", b"old")
    repo.set_main(NEW)
    return repo


def test_models_are_named_as_they_are_asked_for(filled: Repository) -> None:
    found = [(model.name, model.quant, model.size) for model in cached_models()]
    assert found == [
        ("user/Model-GGUF:F16", "F16", 3),
        ("user/Model-GGUF:Q4_K_M", "Q4_K_M", 2000),
        ("user/Model-GGUF:Q8_0", "Q8_0", 1000),
    ]
    assert all(NEW in str(model.path) for model in cached_models()[1:])


def test_of_two_files_with_one_name_the_second_is_named_by_its_file(cache: Path) -> None:
    repo = Repository("user/Model")
    for file in ("a-Q8_0.gguf", "b-Q8_0.gguf", "c.gguf"):
        put(repo, NEW, file, b"x")
    names = [model.name for model in cached_models()]
    assert names == ["user/Model --hf-file b-Q8_0.gguf", "user/Model --hf-file c.gguf", "user/Model:Q8_0"]


def test_what_is_not_whole_is_not_listed(filled: Repository) -> None:
    (filled.folder / "snapshots" / NEW / FILES[2]).unlink()
    os.unlink((filled.folder / "snapshots" / NEW / FILES[0]).resolve())  # a link that leads nowhere
    assert [model.name for model in cached_models()] == ["user/Model-GGUF:F16", "user/Model-GGUF:Q8_0"]
    assert OLD in str(cached_models()[1].path)


def test_where_links_are_impossible_files_are_moved(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    path = put(Repository("user/Model"), NEW, "m.gguf", b"content")
    assert (path.read_bytes(), path.is_symlink()) == (b"content", False)


def test_the_command_lists_packaged_and_cached_models(filled: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    head, packaged, *others = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "QUANT", "SIZE", "PATH"]
    assert packaged.split()[0] == "(packaged)"
    assert packaged.endswith(str(packaged_model_path()))
    assert [line.split()[0] for line in others] == [f"user/Model-GGUF:{quant}" for quant in ("F16", "Q4_K_M", "Q8_0")]
    assert others[1].split()[1:4] == ["Q4_K_M", "2.0", "kB"]
    assert len({line.index("/") for line in (packaged, *(line.replace("user/", "user-") for line in others))}) == 1


def test_the_command_lists_them_for_programs(filled: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    packaged, *others = json.loads(capsys.readouterr().out)
    assert packaged["name"] is None
    assert Path(packaged["path"]) == packaged_model_path()
    assert others[2] == {
        "name": "user/Model-GGUF:Q8_0",
        "quant": "Q8_0",
        "size": 1000,
        "path": str(filled.folder / "snapshots" / NEW / "m-Q8_0.gguf"),
    }


def test_an_empty_cache_says_how_to_fill_it(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert "pyllmcancel serve -hf USER/MODEL" in said.err
    assert str(cache) in said.err


def test_a_model_is_removed_with_all_that_only_it_needs(filled: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("user/Model-GGUF:Q4_K_M", "user/Model-GGUF:Q8_0"):
        assert main(["models", "remove", name]) == 0
    assert (
        capsys.readouterr().out
        == "user/Model-GGUF:Q4_K_M is removed: 2.0 kB\nuser/Model-GGUF:Q8_0 is removed: 1.0 kB\n"
    )
    # The older commit's file of this name has gone, too; another model's has not.
    assert [model.name for model in cached_models()] == ["user/Model-GGUF:F16"]
    left = sorted(path.read_bytes() for path in (filled.folder / "blobs").iterdir())
    assert left == [b"old", b"x" * 1000]  # and the projector


def test_a_blob_that_another_file_links_to_stays(cache: Path) -> None:
    path = put(Repository("user/Model"), NEW, "m-Q8_0.gguf", b"content")
    (path.parent / "copy-F16.gguf").symlink_to(os.readlink(path))
    assert main(["models", "remove", "user/Model:Q8_0"]) == 0
    assert [(model.name, model.path.read_bytes()) for model in cached_models()] == [("user/Model:F16", b"content")]


def test_a_model_that_is_not_there_cannot_be_removed(filled: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "remove", "(packaged)"]) == 2
    assert main(["models", "remove", "smollm2"]) == 2
    assert "no downloaded model is called 'smollm2'; there are: user/Model-GGUF:F16, " in capsys.readouterr().err
    assert len(cached_models()) == 3
    assert packaged_model_path().is_file()
