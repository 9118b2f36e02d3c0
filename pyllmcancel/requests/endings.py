"""The cancel of a request, and its one ending: sealed, forgotten, logged, counted, reported.

A request is ended by the thread that is responsible for it, when nothing is computed for it any more:

- A running request is ended by the engine thread, which gives its slots back first.
- A request that waits, or that the running step does not compute, is ended by a thread that cancels it. That thread
  withdraws the request, and so becomes responsible for it. The engine thread gives the slots back after the step,
  before any other request can get one.
- A request in preparation is ended by the thread that works for it, or else by the one that cancels it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pyllmcancel.adapters import Scales
from pyllmcancel.cancellation import CancelReason, Deadline, reason_text
from pyllmcancel.events import Delta, Ending, FinishReason, RequestStatus, Usage
from pyllmcancel.requests.observer import Observers
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import Outbox

logger = logging.getLogger("pyllmcancel.engine")


class Endings:
    """Takes every cancel, and writes the one ending of each request, in the log too if it `logs`."""

    def __init__(self, registry: Registry, observers: Observers, *, logs: bool = True) -> None:
        self._registry = registry
        self._observers = observers
        self._logs = logs
        # Returns the seconds that a new request would wait; may be called from any thread. Set once.
        self.retry_after: Callable[[], float | None] = lambda: None

    def cancel(self, request: Request, reason: CancelReason, deadline: Deadline | None = None) -> bool:
        """Cancel `request`, from any thread; returns whether this call decided its fate."""
        if not request.cancellation.request(reason, deadline):
            return False
        self._observers.request_cancelled(request)
        if self._registry.withdraw(request):
            self.conclude_withdrawn(request)
        else:
            # The engine thread may be asleep, because every running request is paused.
            self._registry.wake()
        return True

    def shut_down(self, *, accepted: bool = True) -> None:
        """Accept no more requests; cancel those in preparation, idle ones and, by default, the `accepted` ones."""
        self._registry.close()
        for request in self._registry.requests():
            if accepted or request.is_idle or request.status is RequestStatus.PREPARING:
                self.cancel(request, CancelReason.SHUTDOWN)

    def conclude_withdrawn(self, request: Request) -> None:
        """End a cancelled request. The caller has withdrawn it, and so is responsible for it."""
        outbox = Outbox()
        self.conclude(request, FinishReason.CANCELLED, outbox)
        outbox.flush()

    def bury(self, request: Request, outbox: Outbox, error: str) -> None:
        """End a request of the engine thread. That thread is dying, maybe in the middle of ending this request."""
        if not request.ended.done():
            self.conclude(request, FinishReason.ERROR, outbox, error=error, is_sealed=request.cancellation.sealed)

    def conclude(
        self,
        request: Request,
        finish_reason: FinishReason,
        outbox: Outbox,
        *,
        last: Delta | None = None,
        error: str | None = None,
        param: str | None = None,
        is_sealed: bool = False,
    ) -> None:
        """End `request`. The calling thread must be responsible for it.

        A cancel that came first wins over any other end in the same step: `last`, the delta that would have made the
        answer look complete, is then not sent.
        """
        if not is_sealed:
            self._registry.seal(request)
        reason = request.cancellation.reason
        if reason is not None:
            finish_reason, last, error, param = FinishReason.CANCELLED, None, None, None
        ended_at = time.monotonic()
        requested_at = request.cancellation.requested_at
        ending = Ending(
            finish_reason=finish_reason,
            usage=request.usage(),
            phase=request.status,
            cancel_reason=reason,
            error=error,
            param=param,
            cancel_latency=None if requested_at is None else ended_at - requested_at,
            limit=None if last is None else last.limit,
        )
        outbox.owe(request, ending, last)
        if request.cancellation.deadline is Deadline.QUEUE:
            request.retry_after = self._retry_after(request)
        request.ended_at = ended_at
        request.status = RequestStatus.FINISHED
        request.drop_media()
        try:
            self._registry.forget(request, ending)
            self._log(request, ending)
            self._observers.request_ended(request, ending)
        finally:
            # Last: a thread that waits for the ending finds every table, log and counter up to date.
            outbox.pay()

    def _retry_after(self, request: Request) -> float | None:
        """Return the expected wait. Its failure must not leave a client without its ending."""
        try:
            return self.retry_after()
        except Exception:
            logger.exception("no wait is known for request %s", request.id, extra={"request_id": request.id})
            return None

    def _log(self, request: Request, ending: Ending) -> None:
        if not self._logs or not (logger.isEnabledFor(logging.INFO) or ending.finish_reason is FinishReason.ERROR):
            return
        usage, level = ending.usage, logging.INFO
        match ending.finish_reason:
            case FinishReason.CANCELLED:
                assert ending.cancel_latency is not None
                assert ending.cancel_reason is not None
                reason = reason_text(ending.cancel_reason, request.cancellation.deadline)
                by = "" if request.superseded_by is None else f" by {request.superseded_by}"
                done = f"cancelled ({reason}{by}) in {ending.phase} after {_progress(request, ending)}"
                done += f", stopped in {ending.cancel_latency * 1e3:.1f} ms"
            case FinishReason.ERROR:
                done, level = f"failed in {ending.phase}: {ending.error}", logging.ERROR
            case FinishReason.STOP | FinishReason.LENGTH:
                done = f"finished ({ending.limit or ending.finish_reason}): {usage.prompt_tokens:,} prompt tokens"
                done += f", {usage.cached_tokens:,} cached, {usage.completion_tokens:,} generated"
                done += f"{_drafts(usage)}{_adapters(request.adapters)}, {_seconds(request):.2f} s"
        text, load = "request %s %s, waiting %d, running %d", self._registry.load
        logger.log(level, text, request.id, done, *load, extra=_facts(request, ending))


def _progress(request: Request, ending: Ending) -> str:
    if ending.phase is RequestStatus.DECODE:
        return f"{ending.usage.completion_tokens:,} generated tokens"
    return f"{ending.usage.prompt_tokens:,} of {request.n_prompt_tokens:,} tokens"


def _seconds(request: Request) -> float:
    return round((request.ended_at or 0.0) - request.arrived_at, 6)


def _adapters(scales: Scales) -> str:
    """Return the part of the log's line about LoRA adapters: their numbers and scales."""
    return f", lora {' '.join(f'{number}:{scale:g}' for number, scale in scales)}" if scales else ""


def _drafts(usage: Usage) -> str:
    """Return the part of the log's line about drafts: the accepted tokens of all that were drafted, by source."""
    shown = ", ".join(f"{one.source} {one.n_accepted:,} of {one.n_drafted:,}" for one in usage.drafts)
    return f" (accepted drafts: {shown})" if shown else ""


def _facts(request: Request, ending: Ending) -> dict[str, object]:
    """Return the log's fields for an ending; None is left out."""
    usage = ending.usage
    return {
        "request_id": request.id,
        "owner": request.owner or None,
        "session": request.session,
        "lora": [{"id": number, "scale": scale} for number, scale in request.adapters] or None,
        "finish_reason": ending.finish_reason,
        "limit": ending.limit,
        "reason": ending.cancel_reason,
        "detail": request.cancellation.deadline,
        "superseded_by": request.superseded_by,
        "phase": ending.phase,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "drafted_tokens": sum(one.n_drafted for one in usage.drafts) or None,
        "accepted_draft_tokens": sum(one.n_accepted for one in usage.drafts) if usage.drafts else None,
        "cancel_latency_ms": None if ending.cancel_latency is None else round(ending.cancel_latency * 1e3, 3),
        "seconds": _seconds(request),
        "error": ending.error,
        "param": ending.param,
    }
