"""Spin tries every interleaving of the cancel protocol, and finds what is wrong with each broken variant of it.

Needs spin (Debian's package `spin`) and a C compiler. The protocol, and what is broken in the variants, is described in
`cancel_protocol.pml` beside this file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PROTOCOL = Path(__file__).with_name("cancel_protocol.pml")
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
COMPANIES = ("KEYED", "APART", "KEYED DIES", "APART DIES", "KEYED PAUSES", "PAUSES READS")
SAFETY = ("-DSAFETY", "-DNOCLAIM")
LIVENESS = ("-DNFAIR=3",)
DEEP = "-m1000000"

TWO_LIVE = "known[0]&&(reason[0]=="
LOST = "||(ending[i]=="
LEAKED = "||wanted[i]"
NOT_OWNED = "owner[r]==_pid"
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
    ("BURIES_WITHDRAWN", "KEYED DIES", TAKEN),
    ("FORGETS_OWED", "KEYED DIES", NOT_TOLD),
    ("CANCELS_QUIETLY", "KEYED PAUSES", NOT_TOLD),
    ("READS_ON_QUIETLY", "PAUSES READS", NOT_RESUMED),
    ("WAKES_TOO_EARLY", "PAUSES READS", NOT_RESUMED),
]

pytestmark = [
    pytest.mark.skipif(
        shutil.which("spin") is None or COMPILER is None,
        reason="THE CANCEL PROTOCOL WAS NOT CHECKED: it takes spin (apt install spin) and a C compiler",
    ),
    pytest.mark.timeout(600),
]

Verify = Callable[..., str]


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    """Make a verifier of the protocol and run it; what it says."""

    def run(defines: Sequence[str], options: Sequence[str], *arguments: str) -> str:
        names = [f"-D{name}" for name in defines]
        call(["spin", *names, "-a", str(PROTOCOL)], tmp_path)
        assert COMPILER is not None
        call([COMPILER, "-O2", "-w", "-DCOLLAPSE", "-DMEMLIM=6000", *options, "-o", "pan", "pan.c"], tmp_path)
        said = call(["./pan", DEEP, *arguments], tmp_path)
        assert "max search depth too small" not in said
        return said

    return run


def call(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # A verifier that has found a fault says so, and ends with a status of its own.
    assert command[0] == "./pan" or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def errors(said: str) -> int:
    found = re.search(r"errors: (\d+)", said)
    assert found is not None, said
    return int(found[1])


@pytest.mark.parametrize("company", COMPANIES)
def test_no_interleaving_breaks_an_invariant_or_leaves_a_request_without_an_ending(
    verify: Verify, company: str
) -> None:
    said = verify(company.split(), SAFETY)
    assert "assertion violations\t+" in said
    assert "invalid end states\t+" in said
    assert errors(said) == 0, said


def test_every_accepted_request_ends(verify: Verify) -> None:
    said = verify(["KEYED"], LIVENESS, "-a", "-f")
    assert "acceptance   cycles \t+ (fairness enabled)" in said
    assert errors(said) == 0, said


@pytest.mark.parametrize(("variant", "company", "assertion"), BROKEN, ids=[variant for variant, _, _ in BROKEN])
def test_a_broken_variant_is_caught(verify: Verify, variant: str, company: str, assertion: str) -> None:
    said = verify([*company.split(), variant], SAFETY)
    assert errors(said) == 1
    violated = re.search(r"assertion violated (.*) \(at depth", said)
    assert violated is not None, said
    assert assertion in violated[1]


def test_a_request_that_is_not_taken_out_between_steps_never_ends(verify: Verify) -> None:
    said = verify(["KEYED", "NOT_LET_GO"], LIVENESS, "-a", "-f")
    assert errors(said) == 1
    assert "acceptance cycle" in said
