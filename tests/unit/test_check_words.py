"""English that has to be read twice is found, in pages and in docstrings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_words import PAGES, ROOT, faults, of_docstrings


@pytest.mark.parametrize(
    "text",
    [
        "What is empty is as the server has it.",
        "It is known. Elsewhere a prompt that has begun is computed to the end of its batch.",
        "| `--max-connections` | Of which one more closes the idlest |",
        "- Whether there is something to read.",
        "- **Something to read.** Of this the first half is there.",
    ],
)
def test_an_opening_without_a_subject_is_found(text: str) -> None:
    assert len(faults(text)["openings"]) == 1


def test_a_sentence_of_more_than_35_words_is_found() -> None:
    assert faults("The word " + "again " * 34)["long sentences"]
    assert not faults("The word " + "again " * 33)["long sentences"]


@pytest.mark.parametrize(
    "text",
    [
        "Empty fields use the server's defaults.",
        "What does it cost?",
        "# What it is\n\nA server.",
        "`Whether` is code. A link says [what it is](what-it-is.md).",
        "models: " + "`llama`, " * 40 + "`qwen`",
    ],
)
def test_other_sentences_are_left_alone(text: str) -> None:
    assert faults(text) == {"openings": [], "long sentences": []}


def test_docstrings_are_looked_at_and_comments_and_code_are_not(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Of a module."""\n\n# What a comment says.\nTEXT = "Whether a text"\n')
    assert of_docstrings([module]) == {"openings": ["Of a module."], "long sentences": []}


def test_the_pages_are_there() -> None:
    assert all((ROOT / page).is_file() for page in PAGES)
