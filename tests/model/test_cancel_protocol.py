"""Spin tries every interleaving of the cancel protocol, and finds what is wrong with each broken variant of it.

The protocol, and what is broken in the variants, is described in
`cancel_protocol.pml` beside this file.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support import spin
from tests.support.marks import mostly_long
from tests.support.spin import LIVENESS, QUICKLY, SAFETY, errors, violated

PROTOCOL = Path(__file__).with_name("cancel_protocol.pml")
COMPANIES = ("KEYED", "APART", "KEYED DIES", "APART DIES", "KEYED PAUSES", "PAUSES READS")

TWO_LIVE = "known[0]&&(reason[0]=="
LOST = "||(ending[i]=="
LEAKED = "||wanted[i]"
NOT_OWNED = "owner[r]==_pid"
IN_A_STEP = "in_step["
ENDS_TWICE = "!(sealed[i])"
NOT_TOLD = "accepted[0]<=n_endings[0]"
NOT_RESUMED = "n_endings[2]==1"
TAKEN = "owner[i]==254"
# Variant, company, and what of the violated assertion tells it from others.
BROKEN = [
    ("CLEARED_FLAG", "KEYED", LOST),
    ("GLOBAL_FLAG", "APART", LEAKED),
    ("ENDS_UNOWNED", "APART", NOT_OWNED),
    ("NEWEST_BY_ACCEPTANCE", "KEYED", "arrival[older]<arrival[newer]"),
    ("SUPERSEDES_UNLOCKED", "KEYED", TWO_LIVE),
    ("SEALED_UNLOCKED", "KEYED", TWO_LIVE),
    ("OFFERS_MEMBERS", "APART", IN_A_STEP),
    ("FORGETS_TAKEN", "APART", ENDS_TWICE),
    ("BURIES_WITHDRAWN", "KEYED DIES", TAKEN),
    ("FORGETS_OWED", "KEYED DIES", NOT_TOLD),
    ("CANCELS_QUIETLY", "KEYED PAUSES", NOT_TOLD),
    ("READS_ON_QUIETLY", "PAUSES READS", NOT_RESUMED),
    ("WAKES_TOO_EARLY", "PAUSES READS", NOT_RESUMED),
]

pytestmark = [spin.needs_spin, pytest.mark.timeout(1800)]

Verify = Callable[..., str]


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    return partial(spin.verify, PROTOCOL, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("company", COMPANIES)
def test_no_interleaving_breaks_an_invariant_or_leaves_a_request_unended(verify: Verify, company: str) -> None:
    said = verify(company.split(), SAFETY)
    assert "assertion violations\t+" in said
    assert "invalid end states\t+" in said
    assert errors(said) == 0, said


@pytest.mark.long
def test_every_accepted_request_ends(verify: Verify) -> None:
    said = verify(["KEYED"], LIVENESS, "-a", "-f")
    assert "acceptance   cycles \t+ (fairness enabled)" in said
    assert errors(said) == 0, said


@pytest.mark.parametrize(
    ("variant", "company", "assertion"),
    mostly_long(BROKEN, ("GLOBAL_FLAG", "APART", LEAKED)),
    ids=[variant for variant, _, _ in BROKEN],
)
def test_a_broken_variant_is_caught(verify: Verify, variant: str, company: str, assertion: str) -> None:
    said = verify([*company.split(), variant], SAFETY + QUICKLY)
    assert errors(said) == 1
    assert assertion in violated(said)


@pytest.mark.long
def test_a_request_that_is_not_taken_out_between_steps_never_ends(verify: Verify) -> None:
    said = verify(["KEYED", "NOT_LET_GO"], LIVENESS + QUICKLY, "-a", "-f")
    assert errors(said) == 1
    assert "acceptance cycle" in said
