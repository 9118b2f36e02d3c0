"""The expected outcomes of llama.cpp's tests, read from ``verdicts.toml``, and compared with the real ones."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

FILE = Path(__file__).with_name("verdicts.toml")
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Rule:
    """Why some tests do not apply, or fail.

    Attributes
    ----------
    tests
        Patterns of test ids, as in file names; ``[`` and ``]`` stand for themselves.
    message
        A regular expression that a failure's message must match, else it is another failure; empty for tests that are
        not run at all.
    """

    tests: tuple[str, ...]
    why: str
    message: str

    def names(self, test: str) -> bool:
        return any(fnmatchcase(plain(test), plain(pattern)) for pattern in self.tests)


def plain(text: str) -> str:
    """Brackets are part of a test's id, not sets of characters."""
    return text.translate({ord("["): "(", ord("]"): ")"})


@dataclass(frozen=True, slots=True)
class Result:
    """How one test ended: ``passed``, ``failed``, ``skipped``; or ``not run``, because it does not apply."""

    test: str
    outcome: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table: ``passed``, ``not applicable``, ``failed`` or `UNEXPLAINED`."""

    test: str
    verdict: str
    why: str


class Verdicts:
    """All rules; the first that names a test holds."""

    def __init__(self, path: Path = FILE) -> None:
        table = tomllib.loads(path.read_text("utf-8"))
        self._not_applicable = [Rule(tuple(one["tests"]), one["why"], "") for one in table["not_applicable"]]
        self._failing = [Rule(tuple(one["tests"]), one["why"], one["message"]) for one in table["failing"]]

    def stale(self, tests: Iterable[str]) -> list[Rule]:
        """Rules that name none of these tests."""
        known = list(tests)
        rules = [*self._not_applicable, *self._failing]
        return [rule for rule in rules if not any(rule.names(test) for test in known)]

    def applies(self, test: str) -> bool:
        return not any(rule.names(test) for rule in self._not_applicable)

    def judge(self, result: Result) -> Verdict:
        match result.outcome:
            case "passed":
                return Verdict(result.test, "passed", "")
            case "not run":
                why = next(rule.why for rule in self._not_applicable if rule.names(result.test))
                return Verdict(result.test, "not applicable", why)
            case "skipped":
                return Verdict(result.test, "not applicable", f"skips itself: {result.message}")
            case _:
                return self._explain(result)

    def _explain(self, result: Result) -> Verdict:
        for rule in self._failing:
            if rule.names(result.test) and re.search(rule.message, result.message):
                return Verdict(result.test, "failed", rule.why)
        return Verdict(result.test, UNEXPLAINED, result.message.splitlines()[0] if result.message else "")
