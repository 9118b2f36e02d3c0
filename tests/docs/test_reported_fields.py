"""The pages on the log and on the feed have every field that the code writes, and no other."""

import ast
import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from pyllmcancel.server.live.events import EVENTS, FeedCapacity, FeedModel, FeedServer
from pyllmcancel.server.requests.answers import StepSequence
from tests.support.pages import ROOT

LOG_PAGE = (ROOT / "docs" / "observability.md").read_text("utf-8")
FEED_PAGE = (ROOT / "docs" / "events.md").read_text("utf-8")
ALWAYS = {"time", "level", "logger", "message", "exception", "stack"}  # by the formatter
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


# -- the log ----------------------------------------------------------------------------------------------------------


def logged_fields() -> set[str]:
    """The facts that the package's modules give to their loggers."""
    found: set[str] = set()
    for file in (ROOT / "pyllmcancel").rglob("*.py"):
        text = file.read_text("utf-8")
        if "extra=" in text:
            module = ast.parse(text, str(file))
            for facts in facts_of_lines(module):
                found |= set(keys(facts, module))
    return found


def facts_of_lines(module: ast.Module) -> Iterator[ast.expr]:
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS:
            yield from (keyword.value for keyword in call.keywords if keyword.arg == "extra")


def keys(facts: ast.expr, module: ast.Module) -> Iterator[str]:
    """The keys of a dict: of a literal, of what a name is assigned, or of what a function of the module returns."""
    match facts:
        case ast.Dict():
            yield from (key.value for key in facts.keys if isinstance(key, ast.Constant))
        case ast.Name(id=name):
            for assignment in ast.walk(module):
                if isinstance(assignment, ast.Assign) and any(ast.unparse(to) == name for to in assignment.targets):
                    yield from keys(assignment.value, module)
        case ast.Call(func=ast.Name(id=name)):
            for function in ast.walk(module):
                if isinstance(function, ast.FunctionDef) and function.name == name:
                    for literal in ast.walk(function):
                        if isinstance(literal, ast.Dict):
                            yield from keys(literal, module)
        case _:
            raise AssertionError(f"facts of an unknown form: {ast.unparse(facts)}")


def test_the_page_has_the_fields_of_the_log() -> None:
    rows = re.findall(r"^- (`.*?): ", LOG_PAGE.split("## Traces")[0], re.MULTILINE | re.DOTALL)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == logged_fields() | (ALWAYS & documented)
    assert ALWAYS - documented == {"stack"}


# -- the feed ---------------------------------------------------------------------------------------------------------


def type_of(event: type) -> str:
    (name,) = get_args(get_type_hints(event)["type"])
    return str(name)


def fields_of(event: type) -> set[str]:
    return set(get_type_hints(event)) - {"type", "replica"}


def described(event: str) -> str:
    if event == "snapshot":
        return FEED_PAGE.split("## `snapshot`")[1].split("\n## ")[0]
    (row,) = re.findall(rf"^- `{event}`: .*\n(?:  .*\n)*", FEED_PAGE.split("## The other events")[1], re.MULTILINE)
    return str(row)


@pytest.mark.parametrize("event", EVENTS, ids=type_of)
def test_the_page_has_the_fields_of_an_event(event: Any) -> None:
    assert fields_of(event) <= set(re.findall(r"\w+", described(type_of(event))))


def test_the_list_of_the_snapshot_has_no_other_field() -> None:
    (snapshot,) = (event for event in EVENTS if type_of(event) == "snapshot")
    rows = re.findall(r"^- (`.*?): ", described("snapshot"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == fields_of(snapshot)


@pytest.mark.parametrize("part", [FeedServer, FeedModel, FeedCapacity])
def test_the_page_has_the_parts_of_the_snapshot(part: type) -> None:
    assert set(get_type_hints(part)) <= set(re.findall(r"`(\w+)`", described("snapshot")))


def test_the_page_has_the_parts_of_a_step() -> None:
    assert set(get_type_hints(StepSequence)) <= set(re.findall(r"\w+", described("step")))
