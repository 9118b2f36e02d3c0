"""A line of the log for the operator whose editors send the next completion without cancelling the last one."""

from __future__ import annotations

import logging
from collections import deque
from weakref import ref

from pyllmcancel.requests.request import Request

logger = logging.getLogger("pyllmcancel.server")

LATEST = 16  # requests that are looked at
ENOUGH = 4  # live ones of them, from one address


class PileUp:
    """Notices completions of one address that live at the same time. Used by the event loop only."""

    def __init__(self) -> None:
        self._latest = deque[tuple[str, str, ref["Request"]]](maxlen=LATEST)
        self._is_reported = False

    def note(self, owner: str, key: str | None, request: Request) -> None:
        """Note a request without a supersede key.

        `key` is the one that ``--supersede client-ip`` would have given to it; requests with None do not count.
        """
        if key is None or self._is_reported:
            return
        self._latest.append((owner, key, ref(request)))
        same = (kept() for *group, kept in self._latest if group == [owner, key])
        if sum(one is not None and one.live for one in same) >= ENOUGH:
            self._is_reported = True
            self._latest.clear()
            text = "%d requests of one address, with no supersede key, live at once: if they are one editor's, "
            text += "--supersede client-ip would have cancelled all but the newest"
            logger.info(text, ENOUGH, extra={"request_id": request.id})
