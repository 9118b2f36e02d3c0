"""Every input of the fuzzers' corpus, the ones that once broke something included, through its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, close

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_each_input_of_the_corpus_is_answered_or_refused(target: str) -> None:
    paths = sorted((CORPUS / target).iterdir())
    assert paths
    try:
        for path in paths:
            try:
                TARGETS[target](path.read_bytes())
            except BaseException as error:
                error.add_note(f"the input is {path}")
                raise
    finally:
        close()
