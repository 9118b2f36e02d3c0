"""The page on the Python library has everything that the package exports, with every field."""

import re
from dataclasses import fields

import pytest

import pyllmcancel
from pyllmcancel import Delta, Ending, EngineConfig, GenerationParams, Placement, SamplingParams, Usage
from tools.check_words import ROOT

PAGE = (ROOT / "docs" / "library.md").read_text("utf-8")


def test_the_page_has_every_export_once() -> None:
    shown = re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE)
    exported = [f"pyllmcancel.{name}" for name in pyllmcancel.__all__ if name not in vars(pyllmcancel.errors)]
    assert sorted(shown) == sorted(
        [*exported, "pyllmcancel.errors", "pyllmcancel.placement.Device", "pyllmcancel.requests.token_stream.Stream"]
    )


@pytest.mark.parametrize("kind", [Delta, Ending, EngineConfig, GenerationParams, Placement, SamplingParams, Usage])
def test_a_docstring_has_every_field(kind: type) -> None:
    doc = kind.__doc__ or ""
    named = {name for line in re.findall(r"^    ([a-z_, ]+)$", doc, re.MULTILINE) for name in line.split(", ")}
    assert {field.name for field in fields(kind)} <= named
