"""What the request bodies of all dialects have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from pyllmcancel.server.limits import MAX_NAME
from pyllmcancel.server.submission import MAX_SESSION_ID

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
MAX_TIMEOUT = 7 * 86_400.0  # seconds


Name = Annotated[str, Field(max_length=MAX_NAME)]


class RequestBody(BaseModel):
    """Refuses what it does not know: the client would believe that it had an effect.

    Lists have `fail_fast`: one error is reported, not one for each of a hundred thousand wrong entries.
    """

    model_config = ConfigDict(extra="forbid")


class GeneratingBody(RequestBody):
    """A request's place among the others, and the form of its answer."""

    model: Name | None = Field(None, description="Any name is served; the answer names the model that did it.")
    stream: bool = False
    session_id: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SESSION_ID,
        description="Ours: a newer request of a session cancels the older one.",
    )
    timeout: float | None = Field(
        None, gt=0, le=MAX_TIMEOUT, description="Ours: deadline in seconds, time in the queue included."
    )
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
