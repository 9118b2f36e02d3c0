"""Spin tries every interleaving of each protocol, and finds what is wrong with each broken variant of it.

The cancel protocol, the threads that prepare and cancel a request, and those that compute steps ahead: files beside
this one describe them, and what is broken in the variants.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import spin
from tests.support.marks import mostly_long
from tests.support.spin import LIVENESS, QUICKLY, SAFETY, errors, violated

TWO_LIVE = "known[0]&&(reason[0]=="
LEAKED = "||wanted[i]"
NOT_TOLD = "accepted[0]<=n_endings[0]"
NOT_RESUMED = "n_endings[2]==1"
# Protocol, company, and the kinds of threads all of whose code is reached.
WHOLE = [
    *(("cancel_protocol", company, ()) for company in ("KEYED", "APART", "KEYED DIES", "APART DIES", "KEYED PAUSES")),
    ("cancel_protocol", "PAUSES READS", ()),
    ("preparation", "", ("endpoint", "worker", "canceller", "engine")),
    ("steps_ahead", "", ("engine",)),
]
# Protocol, variant with its company, and what of the violated assertion tells it from others.
PREPARATION = [
    ("preparation", "ENDS_DURING_WORK", "!(sealed)"),
    ("preparation", "FORGETS_AFTER_WORK", "refused==(n_endings==0)"),
    ("preparation", "REFUSES_CANCELLED", "requested"),
    ("preparation", "ARRIVES_AGAIN", "!(sealed)"),
]
BROKEN = [
    ("cancel_protocol", "CLEARED_FLAG KEYED", "||(ending[i]=="),
    ("cancel_protocol", "GLOBAL_FLAG APART", LEAKED),
    ("cancel_protocol", "ENDS_UNOWNED APART", "owner[r]==_pid"),
    ("cancel_protocol", "NEWEST_BY_ACCEPTANCE KEYED", "arrival[older]<arrival[newer]"),
    ("cancel_protocol", "SUPERSEDES_UNLOCKED KEYED", TWO_LIVE),
    ("cancel_protocol", "SEALED_UNLOCKED KEYED", TWO_LIVE),
    ("cancel_protocol", "OFFERS_MEMBERS APART", "in_step["),
    ("cancel_protocol", "FORGETS_TAKEN APART", "!(sealed[i])"),
    ("cancel_protocol", "BURIES_WITHDRAWN KEYED DIES", "owner[i]==254"),
    ("cancel_protocol", "FORGETS_OWED KEYED DIES", NOT_TOLD),
    ("cancel_protocol", "CANCELS_QUIETLY KEYED PAUSES", NOT_TOLD),
    ("cancel_protocol", "READS_ON_QUIETLY PAUSES READS", NOT_RESUMED),
    ("cancel_protocol", "WAKES_TOO_EARLY PAUSES READS", NOT_RESUMED),
    *PREPARATION,
    ("steps_ahead", "HUSHES_LATE", "n_since<=1"),
    ("steps_ahead", "DEAF", "n_since<=1"),
    ("steps_ahead", "RUNS_ON", "waiting"),
    ("steps_ahead", "GIVES_BACK_EARLY", "!(computing)"),
    ("steps_ahead", "COLLECTS_QUIETLY", "joined"),
    ("steps_ahead", "CLOSES_QUIETLY", "joined"),
]
SHORT = [("cancel_protocol", "GLOBAL_FLAG APART", LEAKED), *PREPARATION, ("steps_ahead", "DEAF", "n_since<=1")]

pytestmark = [spin.needs_spin, pytest.mark.timeout(1800)]

Verify = Callable[..., str]


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    def verified(protocol: str, defines: str, *options: str, arguments: tuple[str, ...] = ()) -> str:
        path = Path(__file__).with_name(f"{protocol}.pml")
        return spin.verify(path, tmp_path, defines.split(), options, *arguments)

    return verified


@pytest.mark.parametrize(("protocol", "company", "kinds"), mostly_long(WHOLE, WHOLE[-2]))
def test_no_interleaving_breaks_an_invariant(verify: Verify, protocol: str, company: str, kinds: tuple[str]) -> None:
    said = verify(protocol, company, *SAFETY)
    assert "assertion violations\t+" in said
    assert "invalid end states\t+" in said
    assert errors(said) == 0, said
    for kind in kinds:
        assert f"unreached in proctype {kind}\n\t(0 of " in said  # all of it was tried


@pytest.mark.long
def test_every_accepted_request_ends(verify: Verify) -> None:
    said = verify("cancel_protocol", "KEYED", *LIVENESS, arguments=("-a", "-f"))
    assert "acceptance   cycles \t+ (fairness enabled)" in said
    assert errors(said) == 0, said


@pytest.mark.parametrize(
    ("protocol", "variant", "assertion"), mostly_long(BROKEN, *SHORT), ids=[variant for _, variant, _ in BROKEN]
)
def test_a_broken_variant_is_caught(verify: Verify, protocol: str, variant: str, assertion: str) -> None:
    said = verify(protocol, variant, *SAFETY, *QUICKLY)
    assert errors(said) == 1
    assert assertion in violated(said)


@pytest.mark.long
def test_a_request_that_is_not_taken_out_between_steps_never_ends(verify: Verify) -> None:
    said = verify("cancel_protocol", "KEYED NOT_LET_GO", *LIVENESS, *QUICKLY, arguments=("-a", "-f"))
    assert errors(said) == 1
    assert "acceptance cycle" in said
