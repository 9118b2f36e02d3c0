"""The workflows of ``.github``: other people's code is pinned, and ours that they name is there."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_has_a_limit_of_time_and_the_permissions_that_it_names(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
        assert job["permissions"], name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_an_action_is_named_by_its_commit(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text("utf-8"))
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_a_release_uploads_with_the_tool_that_checked_it() -> None:
    wanted = (ROOT / "tools" / "release" / "requirements.txt").read_text("utf-8").splitlines()
    (pinned,) = re.findall(r"twine==\S+", (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    assert pinned in wanted


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_the_files_that_a_workflow_names_are_there(path: Path) -> None:
    for name in re.findall(r"(?<![/\w])(?:tools|deploy)/[\w./-]+\w", path.read_text("utf-8")):
        assert (ROOT / name).exists(), name
