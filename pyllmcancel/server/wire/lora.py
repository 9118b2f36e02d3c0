"""`lora` of bodies: the adapters to apply, and their scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.wire.fields import RequestBody

if TYPE_CHECKING:
    from pyllmcancel.config import EngineConfig


class LoraScale(RequestBody):
    id: int = Field(ge=0)
    scale: float


def check_lora(asked: list[LoraScale] | None, config: EngineConfig) -> None:
    """Refuse a request that asks for other scales than those that the adapters were loaded with."""
    if asked is None:
        return
    loaded = {number: scale for number, (_path, scale) in enumerate(config.lora)}
    wanted = dict.fromkeys(loaded, 0.0) | {entry.id: entry.scale for entry in asked}
    if wanted != loaded:
        raise InvalidRequestError("adapters and their scales are the server's, not a request's (see --lora)", "lora")
