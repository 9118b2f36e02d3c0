"""The cached models, as `pyllmcancel models` lists them, and which file of a repository a name means."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from pyllmcancel.cli import main
from pyllmcancel.errors import HubError, UsageError
from pyllmcancel.hub.cache import Repository, cached_models
from pyllmcancel.hub.names import ModelName, projector_of, quant_of, tag_of
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


# -- names -------------------------------------------------------------------------------------------------------------


NAMES = (
    "README.md",
    "imatrix.gguf",
    "m-BF16.gguf",
    "m-F16.gguf",
    "m-Q2_K.gguf",
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "mmproj-m-Q4_K_M.gguf",
)
PARTS = tuple(f"Q4_K_M/m-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3))


def chosen(text: str, files: tuple[str, ...], file: str | None = None) -> tuple[str, ...]:
    return ModelName.parse(text, file).choose(files)


@pytest.mark.parametrize(
    ("text", "files", "found"),
    [
        ("u/m", NAMES, "m-Q4_K_M.gguf"),
        ("u/m", tuple(name for name in NAMES if "Q4" not in name), "m-Q8_0.gguf"),
        ("u/m", NAMES[:5], "m-BF16.gguf"),
        ("u/m:q8_0", NAMES, "m-Q8_0.gguf"),
        ("u/m:Q2_K", NAMES, "m-Q2_K.gguf"),
        ("u/m:f16", NAMES, "m-F16.gguf"),
        ("u/m:bf16", NAMES, "m-BF16.gguf"),
        ("u/m:Q4_K_M", ("m-UD-IQ1.gguf", "m.q4_k_m.gguf"), "m.q4_k_m.gguf"),
        ("u/m:Q4_NL", ("m-IQ4_NL.gguf",), "m-IQ4_NL.gguf"),
        ("u/m", ("mtp-m-Q4_K_M.gguf", "deep/m-Q8_0.gguf"), "deep/m-Q8_0.gguf"),
    ],
)
def test_the_quantization_chooses_the_file(text: str, files: tuple[str, ...], found: str) -> None:
    assert chosen(text, files) == (found,)


def test_a_divided_model_is_all_of_its_parts_in_their_order() -> None:
    files = ("m-F16.gguf", *reversed(PARTS))
    assert chosen("u/m", files) == PARTS
    assert chosen("u/m", files, PARTS[0]) == PARTS
    with pytest.raises(HubError, match=r"one of 3 parts, of which .*2-of-00003.* are missing"):
        chosen("u/m:q4_k_m", (PARTS[0], PARTS[2]))


def test_a_file_by_its_name_is_that_file() -> None:
    assert chosen("u/m", NAMES, "mmproj-m-Q4_K_M.gguf") == ("mmproj-m-Q4_K_M.gguf",)
    with pytest.raises(HubError, match=r"no file other.gguf; it has imatrix.gguf, m-BF16"):
        chosen("u/m", NAMES, "other.gguf")


def test_what_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(HubError, match="u/m has no Q5_K_M; it has BF16, F16, Q2_K, Q4_K_M, Q8_0"):
        chosen("u/m:Q5_K_M", NAMES)
    with pytest.raises(HubError, match=r"no GGUF file of a model; it has README.md, model.safetensors"):
        chosen("u/m", ("README.md", "model.safetensors"))
    with pytest.raises(HubError, match="it has no such file"):
        chosen("u/m", ())
    with pytest.raises(HubError, match=r"Q1, .* and 8 more"):
        chosen("u/m:F16", tuple(f"m-Q{i}.gguf" for i in range(1, 21)))


@pytest.mark.parametrize(
    "text", ["", "m", "u/m/x", "/m", "u/", "../m", "u/..", "u/m:", "u/m:a b", "u/m:a:b", "https://huggingface.co/u/m"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="USER/MODEL"):
        ModelName.parse(text)


def test_names_are_said_as_they_are_typed() -> None:
    assert str(ModelName.parse(" u/M-1.5_x:q8_0 ")) == "u/M-1.5_x:q8_0"
    assert [quant_of(name) for name in ("m-1.5b.gguf", "a/m-q4_0.gguf", PARTS[0])] == ["", "Q4_0", "Q4_K_M"]
    assert [tag_of(name) for name in ("m.gguf", "m-1.5b.gguf", "m-mxfp4.gguf")] == ["", "5B", "MXFP4"]


@pytest.mark.parametrize(
    ("model", "paths", "expected"),
    [
        ("m-Q8_0.gguf", ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "mmproj-m-Q8_0.gguf"),
        ("m-Q4_K_M.gguf", ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "mmproj-m-Q8_0.gguf"),
        ("deep/m-F16.gguf", ["mmproj-f16.gguf", "deep/mmproj-q8_0.gguf"], "deep/mmproj-q8_0.gguf"),
        ("m-F16.gguf", ["deep/mmproj-f16.gguf"], None),
        ("m-F16.gguf", ["m-F16.gguf", "mmproj.txt"], None),
    ],
)
def test_the_nearest_projector_of_most_similar_quantization(model: str, paths: list[str], expected: str | None) -> None:
    assert projector_of(model, paths) == expected
