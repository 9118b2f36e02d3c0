"""The LoRA adapters of an engine: which of them compute a request, and from which of its tokens on.

May be used from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from ctypes import c_float
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.adapters import UNADAPTED, Adapted, Adapter, Scales
from pyllmcancel.config import EngineConfig
from pyllmcancel.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyllmcancel._native import Model

MAX_SCALE = 1e6  # far beyond all that is useful, and far below what a float can hold


class LoadedAdapter(NamedTuple):
    """An adapter, its file, and its scale for requests that ask for none."""

    path: Path
    scale: float
    facts: Adapter


class AdapterTable:
    """The adapters that were loaded with a model, by their numbers, from the files and with the scales of `config`."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self._facts = list(model.adapters)
        self._paths = [path for path, _ in config.lora]
        # Replaced as a whole, by any thread.
        self._scales = tuple(0.0 if config.lora_init_without_apply else scale for _, scale in config.lora)

    def loaded(self) -> list[LoadedAdapter]:
        return [LoadedAdapter(*adapter) for adapter in zip(self._paths, self._scales, self._facts, strict=True)]

    def set_scales(self, asked: Iterable[tuple[int, float]]) -> None:
        """Set the scales of requests that are submitted from now on and ask for none; 0 where `asked` says nothing.
        InvalidRequestError, and nothing is changed, if there is no such adapter, or no such scale.
        """
        scales = self._checked(asked)
        self._scales = tuple(scales.get(number, 0.0) for number in range(len(self._facts)))

    def scales(self, asked: Iterable[tuple[int, float]] | None = None) -> Scales:
        """Return the adapters that a request asks for, or those of a request that asks for none. InvalidRequestError
        as by `set_scales`, and for several activated adapters.
        """
        wanted = dict(enumerate(self._scales)) if asked is None else self._checked(asked)
        # The compiled core has them in single precision: of the smallest numbers nothing is left.
        scales = tuple((number, scale) for number, scale in sorted(wanted.items()) if c_float(scale).value != 0.0)
        if len(scales) > 1 and all(self._facts[number].invocation_tokens for number, _ in scales):
            raise InvalidRequestError("a request may use one activated LoRA adapter (aLoRA), not several", "lora")
        return scales

    def adapted(self, scales: Scales, prompt: Sequence[int]) -> Adapted:
        """Return which tokens of a prompt and its answer the adapters compute.

        An activated adapter computes from the last place on where the prompt has its invocation tokens, and nothing if
        there is none. Beside other adapters it computes everything. These are llama-server's rules.
        """
        if not scales:
            return UNADAPTED
        invocation = self._facts[scales[0][0]].invocation_tokens
        if len(scales) > 1 or not invocation:
            return Adapted(scales, 0)
        place = last_place(invocation, prompt)
        if place is None:
            return UNADAPTED
        # As in llama-server, the token before them is computed with the adapter, too; but no picture is divided.
        before = max(0, place - 1)
        return Adapted(scales, place if prompt[before] < 0 else before)

    def _checked(self, asked: Iterable[tuple[int, float]]) -> dict[int, float]:
        scales = dict(asked)
        for number, scale in scales.items():
            if not 0 <= number < len(self._facts):
                known = f"0 to {len(self._facts) - 1}" if self._facts else "none"
                raise InvalidRequestError(f"there is no LoRA adapter {number} (loaded by --lora: {known})", "lora")
            if not math.isfinite(scale) or abs(scale) > MAX_SCALE:
                raise InvalidRequestError(f"the scale of a LoRA adapter is at most {MAX_SCALE:,.0f}", "lora")
        return scales


def last_place(wanted: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Return the index at which `wanted` begins last in `tokens`; None if it does not occur."""
    first, sought, size = wanted[0], list(wanted), len(wanted)
    for start in range(len(tokens) - size, -1, -1):
        if tokens[start] == first and list(tokens[start : start + size]) == sought:
            return start
    return None
