"""Where and on what a run was made: machine, commit, versions."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import NotAvailableError, Peer
from bench.peers.programs import ROOT


class CpuTimes(NamedTuple):
    """Time that programs got, and time that they wanted and did not get."""

    used: int
    stolen: int


def cpu_times() -> CpuTimes:
    """Return the times of all cores since the machine began, in ticks."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    return CpuTimes(user + nice + system + irq + softirq, steal)


def stolen_percent(before: CpuTimes, after: CpuTimes) -> float:
    """How much of the time that programs here wanted between two moments the machine's host gave to others."""
    stolen = after.stolen - before.stolen
    return 100.0 * stolen / max(1, after.used - before.used + stolen)


def describe_code() -> dict[str, Any]:
    """The checkout's commit, and whether it has changes that are in no commit."""
    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def describe_peer(peer: Peer) -> dict[str, str]:
    try:
        version = peer.version()
    except NotAvailableError as error:
        version = f"not here: {error}"
    return {"version": version, "notes": peer.notes}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
