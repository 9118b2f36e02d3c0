"""The errors of the store, as clients get them."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.responses.storage.database import StoreError

T = TypeVar("T")


async def done(future: Future[T]) -> T:
    """Wait for the store, and return its result. Its errors are raised as clients get them."""
    try:
        return await asyncio.wrap_future(future)
    except StoreError as error:
        raise shown(error) from error


def shown(error: StoreError) -> ApiError:
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return ApiError(error.status, str(error), kind, error.param, error.code)
