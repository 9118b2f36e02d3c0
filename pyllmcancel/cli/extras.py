"""Commands that need an extra of the package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection


def run_with_extra(extra: str, packages: Collection[str], run: Callable[[], int]) -> int:
    """Return the result of `run`. If one of the extra's `packages` is missing, say how to install it, and return 2."""
    try:
        return run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        sys.stderr.write(f"pyllmcancel: {missing} is missing: pip install 'pyllmcancel[{extra}]'\n")
        return 2
