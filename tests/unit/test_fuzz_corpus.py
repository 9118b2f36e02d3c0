"""Every input of the fuzzers' corpus, the ones that once broke something included, through its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, close

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"
INPUTS = [(target, path) for target in TARGETS for path in sorted((CORPUS / target).iterdir())]


@pytest.mark.parametrize(("target", "path"), INPUTS, ids=[f"{target}-{path.name}" for target, path in INPUTS])
def test_an_input_of_the_corpus_is_answered_or_refused(target: str, path: Path) -> None:
    try:
        TARGETS[target](path.read_bytes())
    finally:
        close()
