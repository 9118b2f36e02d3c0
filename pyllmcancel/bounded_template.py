"""A chat template with limits on time and memory: it comes with the model's file, which is not trusted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from pyllmcancel.chat_template import ChatTemplate
from pyllmcancel.errors import EngineClosedError, InvalidRequestError
from pyllmcancel.helper import Helper, HelperClosed, HelperEnded, HelperError
from pyllmcancel.pausing import Pause, no_pause

logger = logging.getLogger("pyllmcancel.server")

RETRY_SECONDS = 60.0  # until a template is compiled again that had not enough time or memory
CPU_SECONDS = 1.0  # for all messages of a conversation; usual ones take a millisecond


class BoundedTemplate(ChatTemplate):
    """A chat template that is compiled and rendered in another process. Any thread may call any method.

    The first method that needs the process starts it, which takes a moment. The parameters are ChatTemplate's.

    Raises
    ------
    InvalidRequestError
        By every method, if the template cannot be compiled.
    """

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        self.source = source
        self._helper = Helper("open_template", source, bos, eos, cpu_seconds=CPU_SECONDS)
        self._lock = threading.Lock()
        self._opened: dict[str, Any] | None = None
        self._refused: str | None = None  # why it is not rendered
        self._refused_until = 0.0

    def prepare(self) -> None:
        """Start the process, and have the template compiled."""
        with self._lock:
            if self._opened is None and time.monotonic() >= self._refused_until:
                self._open()
            refused = self._refused
        if refused is not None:
            raise InvalidRequestError(refused, "chat_template")

    def _open(self) -> None:
        self._refused = None
        try:
            self._opened = self._helper.open()
            return
        except HelperClosed as error:
            raise EngineClosedError(str(error)) from None
        except HelperEnded as error:
            # The machine may have been too busy.
            self._refused = f"the chat template cannot be compiled: {error}"
            self._refused_until = time.monotonic() + RETRY_SECONDS
        except HelperError as error:
            self._refused, self._refused_until = str(error), inf
        logger.error("%s; chats will be refused", self._refused)

    @property
    def variables(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(self._known("variables"))

    @property
    def object_arguments(self) -> bool:  # type: ignore[override]
        return bool(self._known("object_arguments"))

    def render(self, messages: Sequence[Mapping[str, Any]], pause: Pause = no_pause, /, **variables: Any) -> str:
        self.prepare()
        try:
            text: str = self._helper.call("render", list(messages), variables, pause=pause)
        except HelperClosed as error:
            raise EngineClosedError(str(error)) from None
        except HelperEnded as error:
            raise InvalidRequestError(f"the chat template cannot be rendered: {error}", "messages") from error
        except HelperError as error:
            raise InvalidRequestError(str(error), "messages") from error
        return text

    def close(self) -> None:
        """End the process. Idempotent."""
        self._helper.close()

    def _known(self, name: str) -> Any:
        self.prepare()
        assert self._opened is not None
        return self._opened[name]
