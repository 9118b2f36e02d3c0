"""The request's wish that its answer goes on without a reader, and the name of its stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.http.request_context import left_at_of, request_id_of
from pyllmcancel.server.http.workers import ClientLeft
from pyllmcancel.server.origin import conversation_of
from pyllmcancel.server.state import state_of
from pyllmcancel.server.streams.kept import Keeping

if TYPE_CHECKING:
    from fastapi import Request

    from pyllmcancel.server.wire.fields import GeneratingBody


def keeping_of(request: Request, body: GeneratingBody) -> Keeping | None:
    """Return how the answer is kept; None if it ends when its client leaves.

    Raises
    ------
    InvalidRequestError
        The conversation's name has a wrong form, or `keep_going` is not for a stream.
    ClientLeft
        The client left the process in front so long ago that nothing is to be computed.
    """
    wish, most = body.keep_going or None, state_of(request).config.stream_keep
    if body.runs_alone:
        return None
    if wish is not None and not body.stream:
        raise InvalidRequestError("only a stream can go on without its reader: set `stream`, too", "keep_going")
    if wish is not None and most <= 0:
        body.ignore("keep_going")
        return None
    conversation = conversation_of(request, body)
    if wish is None and conversation is None:
        return None
    seconds = wish if isinstance(wish, float) else math.inf
    keeping = Keeping(conversation or request_id_of(request.scope), min(seconds, most), left_at_of(request.scope))
    if keeping.left <= 0.0:
        raise ClientLeft
    return keeping
