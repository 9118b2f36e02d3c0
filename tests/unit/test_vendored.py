"""The code of others in the pages is what VENDORED.toml says, all of it, with its licences."""

import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "pyllmcancel" / "page" / "vendor"
PACKAGES: list[dict[str, Any]] = tomllib.loads((FOLDER / "VENDORED.toml").read_text("utf-8"))["package"]
FILES = {file["to"]: file["sha256"] for package in PACKAGES for file in package["files"]}


@pytest.mark.parametrize("path", FILES)
def test_a_vendored_file_has_its_sha256(path: str) -> None:
    assert hashlib.sha256((ROOT / path).read_bytes()).hexdigest() == FILES[path]


def test_no_file_is_vendored_that_is_not_listed() -> None:
    here = {path.relative_to(ROOT).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert here - {"pyllmcancel/page/vendor/VENDORED.toml"} == {
        path for path in FILES if not path.startswith("licenses/")
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package["name"]))
def test_a_package_comes_with_its_licence(package: dict[str, Any]) -> None:
    assert package["licence"]
    assert any(Path(file["to"]).parent == Path("licenses") for file in package["files"])


def test_no_two_packages_write_one_file() -> None:
    assert len(FILES) == sum(len(package["files"]) for package in PACKAGES)
