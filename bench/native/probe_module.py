"""The compiled probe, from where the build leaves it."""

from __future__ import annotations

import importlib.util
import sysconfig
from typing import Any

from bench.peers.programs import ROOT, NotAvailableError

NAME = "pyllmcancel_probe"
PATH = ROOT / "build" / "probe" / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"


def load_probe() -> Any:
    """Import the probe; NotAvailableError, with what to do, where it is not built."""
    spec = importlib.util.spec_from_file_location(NAME, PATH)
    if not PATH.exists() or spec is None or spec.loader is None:
        raise NotAvailableError(f"{PATH} is missing: python -m bench.prepare programs")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
