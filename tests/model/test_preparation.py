"""Spin tries every interleaving of the threads that prepare and cancel a request, and finds what is wrong with broken
variants.

The protocol, and what is broken in the variants, is described in `preparation.pml` beside this file.
"""

from pathlib import Path

import pytest

from tests.support.spin import QUICKLY, SAFETY, errors, needs_spin, verify, violated

PROTOCOL = Path(__file__).with_name("preparation.pml")
# Variant, and what of the violated assertion tells it from others.
BROKEN = [
    ("ENDS_DURING_WORK", "!(sealed)"),
    ("FORGETS_AFTER_WORK", "refused==(n_endings==0)"),
    ("REFUSES_CANCELLED", "requested"),
    ("ARRIVES_AGAIN", "!(sealed)"),
]

pytestmark = [needs_spin, pytest.mark.timeout(1800)]


def test_no_interleaving_loses_a_request_or_ends_it_twice_or_during_its_work(tmp_path: Path) -> None:
    said = verify(PROTOCOL, tmp_path, [], SAFETY)
    assert "assertion violations\t+" in said
    assert "invalid end states\t+" in said
    assert errors(said) == 0, said
    for name in ("endpoint", "worker", "canceller", "engine"):
        assert f"unreached in proctype {name}\n\t(0 of " in said  # all of it was tried


@pytest.mark.parametrize(("variant", "assertion"), BROKEN, ids=[variant for variant, _ in BROKEN])
def test_a_broken_variant_is_caught(tmp_path: Path, variant: str, assertion: str) -> None:
    said = verify(PROTOCOL, tmp_path, [variant], SAFETY + QUICKLY)
    assert errors(said) == 1
    assert assertion in violated(said)
