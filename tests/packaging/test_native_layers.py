"""The layers of the native core are its folders: a file includes only files of its own folder and of those below it."""

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
INCLUDE = re.compile(r'^\s*(?:#\s*include|cdef extern from) "([^"]+)"', re.MULTILINE)
SUFFIXES = {".cpp", ".hpp", ".pyx", ".pxd", ".pxi"}

Sources = dict[str, str]


def sources() -> Sources:
    """The texts of the core by their paths in ``native``."""
    files = (path for path in sorted(NATIVE.rglob("*")) if path.suffix in SUFFIXES)
    return {path.relative_to(NATIVE).as_posix(): path.read_text("utf-8") for path in files}


def layers() -> list[str]:
    """The folders in the order of the table in ``native/README.md``, from the top down."""
    return re.findall(r"^\| \[`(\w+)/`\]\(\1\) \|", (NATIVE / "README.md").read_text("utf-8"), re.MULTILINE)


def includes(files: Sources) -> list[tuple[str, str]]:
    """Each include of one file of the core by another, system headers and those of llama.cpp left out."""
    return [(path, name) for path, text in files.items() for name in INCLUDE.findall(text) if name in files]


def upward(files: Sources) -> list[str]:
    depth = {folder: number for number, folder in enumerate(layers())}
    pairs = [(path, name, path.split("/")[0], name.split("/")[0]) for path, name in includes(files)]
    return [f"{path} -> {name}" for path, name, own, its in pairs if depth[its] < depth[own]]


def test_every_folder_is_in_the_table_once() -> None:
    assert sorted(layers()) == sorted(path.name for path in NATIVE.iterdir() if path.is_dir())


def test_every_source_file_is_in_a_folder() -> None:
    assert [path for path in sources() if "/" not in path] == []


def test_a_file_includes_only_its_own_folder_and_those_below_it() -> None:
    assert upward(sources()) == []


def test_an_include_names_the_folder() -> None:
    names = {Path(path).name for path in sources() if path.endswith(".hpp")}
    pairs = [(path, name) for path, text in sources().items() for name in INCLUDE.findall(text)]
    assert [pair for pair in pairs if pair[1] in names or pair[1].startswith(".")] == []


@pytest.mark.parametrize(
    ("path", "added"),
    [
        ("platform/errors.hpp", '#include "model/model.hpp"'),
        ("cells/pages.cpp", '#include "step/context.hpp"'),
        ("sampling/sampler.hpp", '#  include "step/step_items.hpp"'),
    ],
)
def test_an_include_upwards_is_found(path: str, added: str) -> None:
    changed = sources() | {path: f"{sources()[path]}\n{added}\n"}
    assert [found.split(" ")[0] for found in upward(changed)] == [path]
