"""The verdicts on llama.cpp's own server tests: only a failure that is known by its message is explained."""

from pathlib import Path

import pytest

from tests.llama_server.launcher import OWN, translate
from tests.llama_server.verdicts import UNEXPLAINED, Result, Verdicts

RULES = """\
[[not_applicable]]
tests = ["unit/a.py::*"]
why = "no such thing"

[[failing]]
tests = ["unit/b.py::test_one[x*"]
why = "their words"
message = "assert (1|2) == 3"
"""


@pytest.fixture
def verdicts(tmp_path: Path) -> Verdicts:
    file = tmp_path / "verdicts.toml"
    file.write_text(RULES)
    return Verdicts(file)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (Result("unit/b.py::test_two", "passed"), "passed"),
        (Result("unit/a.py::test", "not run"), "not applicable"),
        (Result("unit/b.py::test_two", "skipped", "slow"), "not applicable"),
        (Result("unit/b.py::test_one[x-1]", "failed", "assert 2 == 3"), "failed"),
        (Result("unit/b.py::test_one[x-1]", "failed", "assert 4 == 3"), UNEXPLAINED),
        (Result("unit/b.py::test_one[y-1]", "failed", "assert 2 == 3"), UNEXPLAINED),
        (Result("unit/b.py::test_two", "failed", ""), UNEXPLAINED),
    ],
)
def test_a_result_is_judged_by_the_first_rule_that_fits(verdicts: Verdicts, result: Result, verdict: str) -> None:
    assert verdicts.judge(result).verdict == verdict


def test_a_rule_that_names_no_test_is_stale(verdicts: Verdicts) -> None:
    assert [rule.why for rule in verdicts.stale(["unit/a.py::test"])] == ["their words"]
    assert verdicts.stale(["unit/a.py::test", "unit/b.py::test_one[x]"]) == []


def test_options_are_passed_on_but_for_downloads() -> None:
    options = ["--port", "1", "--slots", "--alias", "x", "--no-jinja", "--reasoning-format", "none"]
    given = [*options, "--offline", "--hf-repo", "theirs", "--hf-file", "f", "--chat-template-file", "../a.jinja"]
    ours = translate(given, {"theirs": ["--model", "model.gguf"]})
    assert ours[len(OWN) :] == [
        *(*options, "--chat-template-file", "../a.jinja"),
        *("--no-metrics", "--cors-origins", "*", "--model", "model.gguf"),
    ]
    with pytest.raises(SystemExit, match="no stand-in for the model other"):
        translate(["--hf-repo", "other"], {})
