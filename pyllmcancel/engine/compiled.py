"""The compiled module, which is imported when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyllmcancel.missing_libraries import missing_library

if TYPE_CHECKING:
    from pyllmcancel.placement import Device


def compiled_module() -> Any:
    """Return ``pyllmcancel._native``, or raise an ImportError that says why the module is missing."""
    try:
        from pyllmcancel import _native
    except ImportError as error:
        why = missing_library(error) or (
            "pyllmcancel's compiled module is missing; this is the source tree, not the installed package: "
            "run python with -P, or from another folder"
        )
        raise ImportError(why, name=error.name, path=error.path) from error
    return _native


def devices() -> list[Device]:
    """Return the devices, besides the CPU, on which this build can compute on this machine."""
    found: list[Device] = compiled_module().devices()
    return found
