"""The compiled probe, from where the build leaves it."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAME = "pyllmcancel_probe"
PATH = ROOT / "build" / "probe" / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"


class ProbeMissing(ImportError):  # noqa: N818 - says what is wrong, as ModuleNotFoundError does
    """The probe is not built for this Python."""


def load_probe() -> Any:
    """Import the probe; ProbeMissing, with what to do, where it is not built."""
    spec = importlib.util.spec_from_file_location(NAME, PATH)
    if not PATH.exists() or spec is None or spec.loader is None:
        raise ProbeMissing(f"{PATH} is missing: python -m bench.prepare programs")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
