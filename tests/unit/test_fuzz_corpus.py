"""Every input of the fuzzers' corpus, the ones that once broke something included, through its target."""

from pathlib import Path

import pytest

from tests.fuzz.answers import first_inputs
from tests.fuzz.targets import TARGETS, close

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_each_input_of_the_corpus_is_answered_or_refused(target: str) -> None:
    inputs = {path.name: path.read_bytes() for path in sorted((CORPUS / target).glob("*"))}
    inputs |= dict(first_inputs()) if target == "answers" else {}
    assert inputs
    try:
        for name, data in inputs.items():
            try:
                TARGETS[target](data)
            except BaseException as error:
                error.add_note(f"the input is {name}")
                raise
    finally:
        close()
