"""Spin tries every interleaving of the threads that compute steps ahead, and finds what is wrong with broken variants.

The protocol, and what is broken in the variants, is described in `steps_ahead.pml` beside this file.
"""

from pathlib import Path

import pytest

from tests.support.marks import mostly_long
from tests.support.spin import QUICKLY, SAFETY, errors, needs_spin, verify, violated

PROTOCOL = Path(__file__).with_name("steps_ahead.pml")
# Variant, and what of the violated assertion tells it from others.
BROKEN = [
    ("HUSHES_LATE", "n_since<=1"),
    ("DEAF", "n_since<=1"),
    ("RUNS_ON", "waiting"),
    ("GIVES_BACK_EARLY", "!(computing)"),
    ("COLLECTS_QUIETLY", "joined"),
    ("CLOSES_QUIETLY", "joined"),
]

pytestmark = [needs_spin, pytest.mark.timeout(1800)]


@pytest.mark.long
def test_no_interleaving_runs_on_after_the_bell_or_gives_back_a_slot_that_is_computed_for(tmp_path: Path) -> None:
    said = verify(PROTOCOL, tmp_path, [], SAFETY)
    assert "assertion violations\t+" in said
    assert "invalid end states\t+" in said
    assert errors(said) == 0, said
    assert "unreached in proctype engine\n\t(0 of " in said  # all of it was tried


@pytest.mark.parametrize(
    ("variant", "assertion"),
    mostly_long(BROKEN, ("DEAF", "n_since<=1")),
    ids=[variant for variant, _ in BROKEN],
)
def test_a_broken_variant_is_caught(tmp_path: Path, variant: str, assertion: str) -> None:
    said = verify(PROTOCOL, tmp_path, [variant], SAFETY + QUICKLY)
    assert errors(said) == 1
    assert assertion in violated(said)
