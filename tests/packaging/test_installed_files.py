"""The files after `pip install`: licences, the type marker, the pin, the model, one version everywhere."""

import importlib.util
import itertools
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import pytest

import pyllmcancel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def distribution() -> metadata.Distribution:
    return metadata.distribution("pyllmcancel")


def test_every_licence_is_in_the_metadata(distribution: metadata.Distribution) -> None:
    kept = {path.name: path for path in distribution.files if ".dist-info/licenses/" in path.as_posix()}
    for licence in (ROOT / "LICENSE", *(ROOT / "licenses").iterdir()):
        assert kept[licence.name].read_text(encoding="utf-8") == licence.read_text(encoding="utf-8")


def test_the_licence_expression_covers_what_the_pages_load() -> None:
    expression = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["license"]
    named = set(expression.split(" AND "))
    loaded = tomllib.loads((ROOT / "pyllmcancel/page/vendor/VENDORED.toml").read_text("utf-8"))["package"]
    for package in loaded:
        choices = (set(choice.split(" AND ")) for choice in package["licence"].split(" OR "))
        assert any(choice <= named for choice in choices), package["name"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("llama.cpp-LICENSE.txt", "LICENSE"),
        ("nlohmann-json-LICENSE.txt", "licenses/LICENSE-jsonhpp"),
        ("llamafile-sgemm-LICENSE.txt", "ggml/src/ggml-cpu/llamafile/sgemm.cpp"),
        ("stb_image-LICENSE.txt", "vendor/stb/stb_image.h"),
        ("miniaudio-LICENSE.txt", "vendor/miniaudio/miniaudio.h"),
    ],
)
def test_a_licence_is_the_one_of_the_pinned_source(ours: str, theirs: str) -> None:
    source = ROOT / "vendor" / "llama.cpp" / theirs
    if not source.is_file():
        pytest.skip("vendor/llama.cpp is not filled")
    text = source.read_text("utf-8")
    if source.suffix == ".cpp":  # the comment that it begins with
        lines = itertools.takewhile(str.strip, text.splitlines())
        text = "\n".join(line.removeprefix("//").removeprefix(" ") for line in lines) + "\n"
    if source.suffix == ".h":  # a comment near the end
        text = text[text.rindex("This software is available") :].partition("*/")[0].rstrip("- \n") + "\n"
    assert (ROOT / "licenses" / ours).read_text("utf-8") == text


def test_the_version_is_the_same_everywhere(distribution: metadata.Distribution) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == pyllmcancel.__version__ == distribution.version


def test_an_extra_is_installed_without_asking_an_index_for_the_package(tmp_path: Path) -> None:
    """Errors of commands that lack an extra, and the pages, name this command: it must work in every installation."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "pyllmcancel[top]"]
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    done = subprocess.run(command, env=os.environ | settings, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "already satisfied: pyllmcancel[top]" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["py.typed", "_native.pyi", "llama_cpp_pin.toml", "models/stdlib-coder.gguf"])
def test_the_package_carries(name: str) -> None:
    assert (files("pyllmcancel") / name).is_file()


def test_the_installed_pin_is_the_one_in_the_checkout() -> None:
    installed = (files("pyllmcancel") / "llama_cpp_pin.toml").read_bytes()
    assert installed == (ROOT / "vendor" / "llama.cpp" / "PIN.toml").read_bytes()
