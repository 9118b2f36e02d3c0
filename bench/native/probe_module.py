"""The compiled probe, from where the build leaves it, or from where ``BENCH_PROBE`` says."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import Any

from bench.peers.programs import ROOT, NotAvailableError

NAME = "pyllmcancel_probe"
PATH = ROOT / "build" / "probe" / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"


def load_probe() -> Any:
    """Import the probe; NotAvailableError, with what to do, where it is not built."""
    path = Path(os.environ.get("BENCH_PROBE", PATH))
    spec = importlib.util.spec_from_file_location(NAME, path)
    if not path.exists() or spec is None or spec.loader is None:
        raise NotAvailableError(f"{path} is missing: python -m bench.prepare programs")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
