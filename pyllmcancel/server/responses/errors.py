"""The errors of stored responses, as clients get them."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.responses.storage.database import (
    DamagedResponseError,
    LongConversationError,
    MissingResponseError,
    ResponseExistsError,
    StoreError,
    StoreFullError,
)

T = TypeVar("T")


async def done(future: Future[T]) -> T:
    """Wait for the store, and return its result. Its errors are raised as clients get them."""
    try:
        return await asyncio.wrap_future(future)
    except MissingResponseError as error:
        raise not_found(error.response_id) from error
    except LongConversationError as error:
        raise too_long(str(error)) from error
    except ResponseExistsError as error:
        raise id_taken() from error
    except DamagedResponseError as error:
        raise damaged(error.response_id) from None
    except StoreFullError as error:
        raise ApiError(507, str(error), "server_error", code="storage_full") from error
    except StoreError as error:
        raise ApiError(500, str(error), "server_error", code="storage_failed") from error


def too_long(why: str) -> ApiError:
    return ApiError(400, why, param="previous_response_id", code="invalid_request")


def not_found(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{response_id[:300]}' not found.", code="response_not_found")


def damaged(name: str) -> ApiError:
    message = f"What is stored as '{name[:300]}' is damaged, and can be deleted."
    return ApiError(500, message, "server_error", code="response_damaged")


def id_taken() -> ApiError:
    message = "a response of this id is stored: send another X-Request-Id, or none"
    return ApiError(400, message, param="X-Request-Id", code="bad_id")
