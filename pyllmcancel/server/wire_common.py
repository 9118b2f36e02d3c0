"""What the request bodies of all dialects have in common."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from pyllmcancel.server.submission import MAX_SESSION_ID

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
MAX_TIMEOUT = 7 * 86_400.0  # seconds


class RequestBody(BaseModel):
    """Refuses what it does not know: the client would believe that it had an effect."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, body: Any) -> Any:
        """JSON can spell half of a surrogate pair; neither a tokenizer nor an answer of ours can."""
        if isinstance(body, dict):
            try:
                json.dumps(body, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise ValueError("the text holds half of a surrogate pair, which is not Unicode") from error
        return body


class GeneratingBody(RequestBody):
    """A request's place among the others, and the form of its answer."""

    model: str | None = Field(None, description="Any name is served; the answer names the model that did it.")
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
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
