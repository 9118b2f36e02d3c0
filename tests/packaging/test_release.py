"""tools/release: the version, the changelog's section, the checksums and the bill of materials."""

import json
import os
import shutil
import subprocess
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tools.release import changelog, checksums, repository, urls, version
from tools.release.commands import ReleaseError

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)
CHANGELOG = """# Changelog

A text.

## 0.2.0, unreleased

### Added

- One thing,
  in two lines.
- Another.

### Fixed

- A fault.

## 0.1.0, 2026-12-01

The first version.

### Added

- All of it.
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that name the version."""
    for name, _ in version.PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


# -- the version ------------------------------------------------------------------------------------------------------


def test_every_place_names_the_version_of_the_checkout(copy: Path) -> None:
    assert version.write(copy, version.current(ROOT)) == []


def test_a_version_is_written_into_every_place(copy: Path) -> None:
    old = version.current(ROOT)
    assert version.write(copy, "7.8.9rc1") == [name for name, _ in version.PLACES]
    assert version.current(copy) == "7.8.9rc1"
    for name, template in version.PLACES:
        text = (copy / name).read_text("utf-8")
        assert template.format("7.8.9rc1") in text
        assert template.format(old) not in text


def test_a_place_that_lost_its_version_is_reported(copy: Path) -> None:
    (copy / "deploy" / "Containerfile").write_text("FROM scratch\n")
    with pytest.raises(ReleaseError, match="deploy/Containerfile does not have pyllmcancel:"):
        version.write(copy, "7.8.9")


@pytest.mark.parametrize(
    ("new", "current", "tags"),
    [
        ("0.1.0", "0.1.0", []),
        ("0.2.0", "0.1.0", ["v0.1.0"]),
        ("0.2.0rc1", "0.1.0", ["v0.1.0"]),
        ("0.2.0", "0.2.0rc2", ["v0.1.0", "v0.2.0rc2"]),
        ("0.10.0", "0.9.0", ["v0.9.0", "nightly", "v1"]),
    ],
)
def test_a_version_that_follows_is_taken(new: str, current: str, tags: list[str]) -> None:
    version.check(new, current, tags)


@pytest.mark.parametrize(
    ("new", "current", "tags", "why"),
    [
        ("next", "0.1.0", [], "no version"),
        ("v0.2.0", "0.1.0", [], "not written like"),
        ("0.2", "0.1.0", [], "not written like"),
        ("0.2.0.dev1", "0.1.0", [], "not written like"),
        ("0.2.0+here", "0.1.0", [], "not written like"),
        ("0.1.0", "0.2.0", [], "older than 0.2.0"),
        ("0.2.0rc1", "0.2.0", [], "older than 0.2.0"),
        ("0.2.0", "0.2.0", ["v0.1.0", "v0.2.0"], "does not follow 0.2.0"),
    ],
)
def test_a_version_that_cannot_follow_is_refused(new: str, current: str, tags: list[str], why: str) -> None:
    with pytest.raises(ReleaseError, match=why):
        version.check(new, current, tags)


# -- the addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("https://forge.example/owner/name.git", "https://forge.example/owner/name"),
        ("https://token@forge.example/owner/name", "https://forge.example/owner/name"),
        ("git@forge.example:owner/name.git", "https://forge.example/owner/name"),
        ("ssh://git@forge.example/group/owner/name.git/", "https://forge.example/group/owner/name"),
        ("/srv/name", None),
        ("../name.git", None),
        ("", None),
    ],
)
def test_the_projects_page_is_found_from_the_remote(remote: str, page: str | None) -> None:
    assert urls.page_of(remote) == page


def test_addresses_are_written_once(copy: Path) -> None:
    assert not urls.write(copy, "/srv/name")
    assert urls.write(copy, "git@forge.example:owner/name.git")
    text = (copy / "pyproject.toml").read_text("utf-8")
    assert tomllib.loads(text)["project"]["urls"]["Source"] == "https://forge.example/owner/name"
    assert urls.write(copy, "git@forge.example:another/name.git")
    assert (copy / "pyproject.toml").read_text("utf-8") == text


# -- the changelog ----------------------------------------------------------------------------------------------------


def test_the_changelogs_newest_section_is_the_checkouts_version_or_the_next_one() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = changelog.sections(text)[0]
    if newest.when == changelog.UNRELEASED:
        changelog.check(text, newest.version)
        version.check(newest.version, version.current(ROOT), [])
    else:
        assert newest.version == version.current(ROOT)


def test_the_section_is_dated_and_nothing_else_changes() -> None:
    changelog.check(CHANGELOG, "0.2.0")
    dated = changelog.dated(CHANGELOG, "0.2.0", date(2027, 1, 31))
    assert dated == CHANGELOG.replace("0.2.0, unreleased", "0.2.0, 2027-01-31")


def test_the_notes_are_the_section_of_the_version() -> None:
    notes = changelog.notes(CHANGELOG, "0.2.0")
    assert notes.startswith("### Added\n\n- One thing,")
    assert notes.endswith("### Fixed\n\n- A fault.\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# Changelog\n", "is missing"),
        (CHANGELOG.replace("## 0.2.0, unreleased", "## 0.3.0, unreleased"), "is 0.3.0, unreleased"),
        (CHANGELOG.replace("0.2.0, unreleased", "0.2.0, 2027-01-01"), "released on 2027-01-01"),
        (CHANGELOG.replace("### Fixed", "### Mended"), "Mended: the headings are"),
        (CHANGELOG.replace("- A fault.\n", ""), "no entries under Fixed"),
        ("## 0.2.0, unreleased\n\nNothing.\n", "0.2.0 has no entries$"),
    ],
)
def test_a_changelog_that_is_not_ready_is_refused(text: str, why: str) -> None:
    with pytest.raises(ReleaseError, match=why):
        changelog.check(text, "0.2.0")


# -- commit and tag ---------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of the files that a release changes. No configuration of this machine is read."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    (copy / "CHANGELOG.md").write_text(CHANGELOG.replace("0.2.0", "7.8.9"), "utf-8")
    git(copy, "init", "--quiet")
    for name, value in (("user.name", "somebody"), ("user.email", "somebody@example.org")):
        git(copy, "config", name, value)
    git(copy, "add", "--all")
    git(copy, "commit", "--quiet", "-m", "Begin")
    return copy


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_commit_and_the_tag_are_made_in_a_clone_and_taken_over(checkout: Path, tmp_path_factory: Any) -> None:
    assert repository.check(checkout, "7.8.9") is False
    begin = git(checkout, "rev-parse", "HEAD")
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "--quiet", str(checkout), ".")
    repository.commit_and_tag(checkout, clone, "7.8.9")
    assert git(checkout, "rev-parse", "HEAD") == begin
    assert git(checkout, "tag") == ""

    repository.take_over(checkout, clone, "7.8.9")
    assert version.current(checkout) == "7.8.9"
    assert changelog.sections((checkout / "CHANGELOG.md").read_text("utf-8"))[0].when != "unreleased"
    assert git(checkout, "describe", "--exact-match") == "v7.8.9\n"
    assert repository.check(checkout, "7.8.9") is True
    assert repository.date_of(checkout) == repository.date_of(clone)


def test_nothing_is_released_from_a_checkout_with_changes(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text("changed")
    with pytest.raises(ReleaseError, match="not committed"):
        repository.check(checkout, "7.8.9")


# -- what is published ------------------------------------------------------------------------------------------------


def test_the_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"wheel")
    (tmp_path / "a.tar.gz").write_bytes(b"sdist")
    sums = checksums.write(tmp_path)
    assert [line.split()[1] for line in sums.read_text().splitlines()] == ["a.tar.gz", "b.whl"]
    if (program := shutil.which("sha256sum")) is None:
        pytest.skip("sha256sum is not installed")
    subprocess.run([program, "--check", "--strict", sums.name], cwd=tmp_path, check=True, capture_output=True)


def test_the_bill_names_what_is_compiled_in_and_what_the_page_loads(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx")
    from tools.release import sbom

    if not (ROOT / sbom.JSON_HEADER).is_file():
        pytest.skip("vendor/llama.cpp is not filled")
    wheel = tmp_path / "pyllmcancel-0.2.0-cp311-abi3-manylinux_2_35_x86_64.whl"
    wheel.write_bytes(b"wheel")
    text = sbom.bill(ROOT, "0.2.0", wheel, {"numpy": "2.3.4", "typing_extensions": "4.15.0"}, NOW)
    assert text == sbom.bill(ROOT, "0.2.0", wheel, {"numpy": "2.3.4", "typing_extensions": "4.15.0"}, NOW)
    bill = json.loads(text)
    ours = bill["metadata"]["component"]
    assert ours["hashes"] == [{"alg": "SHA-256", "content": checksums.sha256(wheel)}]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert ours["licenses"] == [{"expression": project["license"]}]
    inside = {one["name"]: one["purl"] for one in ours["components"]}
    assert inside["llama.cpp"].startswith("pkg:github/ggml-org/llama.cpp@")
    assert {"json", "stb_image", "miniaudio", "swagger-ui-dist", "htm"} <= inside.keys()
    assert [one["purl"] for one in bill["components"]] == ["pkg:pypi/numpy@2.3.4", "pkg:pypi/typing-extensions@4.15.0"]
