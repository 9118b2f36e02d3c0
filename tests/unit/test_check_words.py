"""English that has to be read twice is found: in pages, docstrings, comments and strings of the code."""

from pathlib import Path

import pytest

from tools import check_words
from tools.check_words import (
    PAGES,
    ROOT,
    collected,
    comments,
    comments_of_others,
    comments_of_script,
    docstrings,
    faults,
    faults_of_file,
    strings,
)

NOTHING: dict[str, list[str]] = {"openings": [], "long sentences": [], "odd words": []}
LONG = "The word " + "again " * 34


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("What is empty is as the server has it.", "openings"),
        ("It is known. Elsewhere a prompt that has begun is computed to the end of its batch.", "openings"),
        ("| `--max-connections` | Of which one more closes the idlest |", "openings"),
        ("- Whether there is something to read.", "openings"),
        ("- **Something to read.** Of this the first half is there.", "openings"),
        (LONG, "long sentences"),
        ("An unknown field is passed over.", "odd words"),
        ("Readers are told in the log.", "odd words"),
        ("The server keeps so many copies.", "odd words"),
        ("The address where other servers knock.", "odd words"),
        ("most requests of one API key that wait.", "odd words"),
        ("Most tokens that an answer can have.", "odd words"),
        ("The word " + "again " * 33, None),
        ("Empty fields use the server's defaults.", None),
        ("What does it cost?", None),
        ("# What it is\n\nA server.", None),
        ("`Whether` is code. A link says [what it is](what-it-is.md).", None),
        ("An unknown field is ignored, and the log says so.", None),
        ("The two cannot be told apart.", None),
        ("The limit of waiting requests per API key; further ones get 429.", None),
        ("Most models need fewer.", None),
    ],
)
def test_sentences_that_are_read_twice_are_found_and_others_are_not(text: str, kind: str | None) -> None:
    found = faults(text) | {"odd words": collected([text])["odd words"]}
    assert [one for one in found if found[one]] == ([kind] if kind else [])


MODULE = '''"""Of a module."""

# What a comment says
# in two lines. Whether the second one opens well is not asked.
TEXT = "Whether a text"  # Of the field
ERROR = f"the field is passed over: {TEXT}"


class Thing:
    """A thing.

    Whether a later sentence opens well is not asked.
    """
'''


def test_docstrings_are_read_up_to_their_first_sentence() -> None:
    assert collected(docstrings(MODULE)) == NOTHING | {"openings": ["Of a module."]}


def test_comments_are_read_as_blocks_and_beside_code() -> None:
    found = collected(comments(comments_of_script(MODULE)))
    assert found == NOTHING | {"openings": ["What a comment says in two lines.", "Of the field"]}


def test_comments_of_other_languages_are_read_and_addresses_are_not() -> None:
    source = 'int a; // Of a number\n// Whether it\n// is read.\nauto b = "http://so many";\n'
    assert collected(comments(comments_of_others(source)))["openings"] == ["Of a number", "Whether it is read."]


def test_strings_are_read_for_their_words_and_docstrings_are_not_among_them() -> None:
    assert list(strings(MODULE)) == ["Whether a text", "the field is passed over: "]
    assert collected(strings(MODULE), ("odd words",)) == NOTHING | {"odd words": ["the field is passed over:"]}


def test_help_and_errors_of_the_package_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    for folder in ("pyllmcancel", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text(f'HELP = "most readers of a feed"\n\n# {LONG}\n')
    assert faults_of_file(tmp_path / "pyllmcancel" / "module.py") == NOTHING | {
        "long sentences": [LONG.strip()],
        "odd words": ["most readers of a feed"],
    }
    assert faults_of_file(tmp_path / "tests" / "module.py") == NOTHING


def test_the_pages_are_there() -> None:
    assert all((ROOT / page).is_file() for page in PAGES)
