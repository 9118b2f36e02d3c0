"""The body of ``POST /v1/requests/cancel``."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from pyllmcancel.server.limits import MAX_CANCELS, MAX_NAME, MAX_SESSION_ID
from pyllmcancel.server.requests.answers import LiveStatus
from pyllmcancel.server.wire.fields import RequestBody

RequestId = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_ID)]


class CancelBody(RequestBody):
    """The requests to cancel: by their ids, or all live ones that a filter leaves."""

    # An unknown filter must not select more requests than was meant.
    model_config = ConfigDict(extra="forbid")

    request_ids: list[RequestId] | None = Field(None, min_length=1, max_length=MAX_CANCELS, fail_fast=True)
    session: str | None = Field(
        None, max_length=MAX_NAME, description="Requests of this session, without its descendants."
    )
    owner: str | None = Field(
        None, max_length=MAX_NAME, description="With an administrator's key: requests of this owner."
    )
    status: LiveStatus | None = None

    @classmethod
    def _is_given(cls, name: str, value: object) -> bool:
        # An empty filter must not select more requests than was meant, either.
        return value is not None

    @model_validator(mode="after")
    def _says_which(self) -> CancelBody:
        filters = (self.session, self.owner, self.status)
        if (self.request_ids is None) == all(one is None for one in filters):
            raise ValueError("needs either request_ids, or some of session, owner and status")
        return self
