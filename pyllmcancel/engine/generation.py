"""Generation, the loop's first workload: choices get slots, compute in steps, take their tokens, and leave.

`Scheduler` says who has a slot, `DecodeSteps` computes, `add_token` makes text, and `Drafts` guesses tokens. A choice
leaves the batch in the step in which it ends, and a request is over with its last choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyllmcancel.constraints.protocol import after, masks_along
from pyllmcancel.engine.answers import FAULTS, add_token, blamed
from pyllmcancel.engine.batch_invariance import varies_because
from pyllmcancel.engine.choices import ChoiceMaker
from pyllmcancel.engine.drafts import Drafts
from pyllmcancel.engine.encoding import Encoding
from pyllmcancel.engine.steps import DecodeSteps
from pyllmcancel.errors import ConstraintError
from pyllmcancel.events import Delta, FinishReason, Limit, RequestStatus, TokenLogprobs
from pyllmcancel.media.library import MediaLibrary
from pyllmcancel.requests.adapter_table import AdapterTable
from pyllmcancel.requests.request import Choice, Request
from pyllmcancel.scheduling.scheduler import Capacity, Scheduler
from pyllmcancel.scheduling.workload import Facts, Finished, Progress, StepMember, Workload
from pyllmcancel.step import LogitFault, SampledToken, StepItem

if TYPE_CHECKING:
    from pyllmcancel._native import Context, MediaEncoder
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.engine.draft_model import DraftModel
    from pyllmcancel.events import Sink
    from pyllmcancel.requests.observer import Observer
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.scheduling.disk_floor import DiskFloor
    from pyllmcancel.scheduling.workload import Update
    from pyllmcancel.step import StepRow


LAST_WRITES_SECONDS = 10.0
DIVERGED = "the answer was begun on another server, and does not go on here as it began"


class Generation(Workload):
    """The workload that generates text, in a `context` that nothing else uses, made by the module `native`. Any thread
    may call `fill`.

    `draft_model` is a draft model, or the model's own heads, if they are to draft. Prefixes survive a restart on
    `disk`, if there is one. The `encoder` is the model's projector, if it has one.
    """

    core: Context
    scheduler: Scheduler
    steps: DecodeSteps

    def __init__(
        self,
        context: Context,
        config: EngineConfig,
        native: Any,
        draft_model: DraftModel | None = None,
        disk: DiskFloor | None = None,
        *,
        encoder: MediaEncoder | None = None,
    ) -> None:
        model = context.model
        self.core = context
        self.native = native
        self.new_flag = native.CancelFlag
        self.disk = disk
        self.scheduler = Scheduler(context, config, disk)
        self._drafts = Drafts(context, model, config, draft_model)
        self.past_answers = self._drafts.past
        self.steps = DecodeSteps(context, self.scheduler, self._drafts, run_ahead=config.steps_ahead)
        self._encoding = Encoding(encoder, native)
        self._foreground_computes = False  # requests that are not idle, or they will at once
        media: MediaLibrary | None = None
        if encoder is not None:
            context.take_turns(encoder)
            media = MediaLibrary(
                encoder,
                model,
                new_flag=native.CancelFlag,
                image_size=native.image_size,
                cache_bytes=config.media_cache_mib << 20,
                n_batch=context.n_batch,
            )
        self.facts = Facts(
            model=model,
            config=config,
            adapters=AdapterTable(model, config),
            n_ctx=min(context.n_ctx, model.n_ctx_train),
            capacity=Capacity(config.parallel, context.n_cells),
            n_slots=max(config.parallel, context.n_seq_max),
            varies_because=varies_because(model, context, config, native.kernel_features()),
            media=media,
            draft_sources=self._drafts.sources,
        )
        self._choice_maker = ChoiceMaker(model, native, self.facts.adapters, heals=config.token_healing)

    def fill(self, request: Request, prompts: Sequence[Sequence[int]], params: GenerationParams, sink: Sink) -> None:
        """Set what a request computes; raises as `ChoiceMaker.choices`."""
        request.params, request.sink = params, sink
        request.adapters = self.facts.adapters.scales(params.adapters)
        request.choices = self._choice_maker.choices(request, prompts, self.facts.n_ctx)

    # -- into and out of slots ----------------------------------------------------------------------------------------

    def expire(self, requests: Iterable[Request]) -> list[Update]:
        """Finish requests whose prompt took longer than `max_prompt_seconds`, with an empty answer."""
        now = time.monotonic()
        updates: list[Update] = []
        for request in requests:
            most, began = request.params.max_prompt_seconds, request.admitted_at
            if (
                request.status is RequestStatus.PREFILL
                and most is not None
                and began is not None
                and not request.is_idle
                and now - began > most
            ):
                # Choices with `max_tokens` of 0 may have finished already.
                for choice in [choice for choice in request.choices if choice.finish_reason is None]:
                    choice.finish_reason = FinishReason.LENGTH
                    late = Delta(choice.index, "", finish_reason=FinishReason.LENGTH, limit=Limit.PROMPT_TIME)
                    updates.append(self._finish_choice(choice, late))
        return updates

    def pause(self, requests: Sequence[Request], *, foreground_comes: bool) -> None:
        """Pause requests whose sinks are full, whose prefixes are being read from the disk, or that give way to others;
        and resume them when that is over. Idle requests are paused if `foreground_comes`, or while others run.
        """
        idle = [request for request in requests if request.is_idle]
        foreground = [request for request in requests if not request.is_idle]
        self._pause(foreground)
        self._foreground_computes = foreground_comes or not all(request.paused for request in foreground)
        self._pause(idle)

    def _pause(self, requests: Iterable[Request]) -> None:
        for request in requests:
            must_pause = self._must_pause(request)
            if must_pause == request.paused and not (request.is_idle and self._blocks_foreground(request)):
                continue
            request.paused = must_pause
            if not must_pause:
                self.scheduler.resume(request.choices)
                continue
            self.scheduler.pause(request.choices)
            self._encoding.withdraw(request)
            for choice in request.choices:
                choice.resumes = True

    def _blocks_foreground(self, request: Request) -> bool:
        """Return whether others come before a request whose prefix is being read: they would wait for the memory."""
        return self._foreground_computes and self.scheduler.is_fetching(request)

    def _must_pause(self, request: Request) -> bool:
        """Return whether a request can go on later only: its reader is slow, its prefix is being read, or others come
        first.
        """
        waits = request.is_idle and (self._foreground_computes or request.held_by_front)
        return waits or request.sink.full or self.scheduler.is_fetching(request)

    def start(self, request: Request, observer: Observer) -> list[Update]:
        """Take over a request that has left the queue."""
        self._drafts.foresee(request)
        self.scheduler.add(request)
        if self.scheduler.fetch(request):
            request.paused = True
            return []
        # Only the leader that was chosen may be taken: another owner's request may be next.
        return self._started(self.scheduler.start_pending(most=1), observer)

    def release(self, request: Request, *, keep: bool) -> None:
        """Give back the slots of a request that ends before it is complete; with `keep`, its cells stay cached."""
        self.steps.come_to_rest()
        self._encoding.withdraw(request)
        if keep:
            self._drafts.remember(request)
        self._drafts.release(request.choices)
        for choice in request.choices:
            self.scheduler.release(choice, keep=keep)

    def _started(self, choices: Iterable[Choice], observer: Observer) -> list[Update]:
        """Note that choices have got their slots: of new requests, siblings of leaders, preempted ones."""
        updates: list[Update] = []
        for choice in choices:
            request = choice.request
            choice.slot = choice.seq
            if choice.admitted_at is None:
                choice.admitted_at = time.monotonic()
            if request.admitted_at is None:
                request.admitted_at = choice.admitted_at
                request.status = RequestStatus.PREFILL
                observer.request_admitted(request)
            updates += prompt_progress(choice)
            updates += self._take_certain(choice, observer)
            if choice.seq is not None:
                self._encoding.want(choice)
        return updates

    # -- steps --------------------------------------------------------------------------------------------------------

    def plan(self, observer: Observer) -> tuple[list[StepItem], list[Update]]:
        """Start choices that wait for a slot, and return the next step, with its drafts and each constraint's allowed
        tokens. A constraint that fails ends its request.
        """
        updates = self._started(self.scheduler.start_pending(), observer)
        moved = self.scheduler.gather()
        if moved is not None:
            moved.slot = moved.seq
        updates += self._look_after_encodings()
        items = self.scheduler.plan()
        items = self._drafts.attach(items, [self.scheduler.choice(item.seq) for item in items])
        for i, item in enumerate(items):
            choice = self.scheduler.choice(item.seq) if self.scheduler.holds(item.seq) else None
            if choice is None or choice.constraint is None or item.n_tokens < choice.n_pending:
                continue
            try:
                # Tokens that are known already are computed with the prompt, and are delivered after this step.
                masks = masks_along(after(choice.constraint, choice.certain), item.draft)
            except ConstraintError as error:
                updates.append(self._fail(choice.request, str(error), error.param, keep=True))
                continue
            choice.sampler.restrict(*masks)
            items[i] = self._drafts.cut(choice, item, len(masks) - 1)
        return [item for item in items if self.scheduler.holds(item.seq)], updates

    def _look_after_encodings(self) -> list[Update]:
        requests = {choice.request for choice in self.scheduler.active if choice.media}
        if not requests:
            return []
        failed = self._encoding.take_failed(requests)
        updates: list[Update] = [self._fail(request, error, None, keep=True) for request, error in failed]
        for choice in self.scheduler.active:
            if choice.waits_for_encoding:
                # It has lost the reused prefix that had the picture, in a step that did not count.
                self._encoding.want(choice)
        return updates

    def computes(self, request: Request) -> bool:
        active = self.scheduler.active
        return not request.paused and not (active and all(choice.waits_for_encoding for choice in active))

    def on_change(self, wake: Callable[[], object]) -> None:
        """Have `wake` called when a file has been read or written, or a picture is encoded."""
        if self.disk is not None:
            self.disk.wake = wake
        self._encoding.wake = wake

    def close(self) -> None:
        """Write what is at rest to the disk, as far as that takes seconds."""
        if self.disk is None:
            return
        end = time.monotonic() + LAST_WRITES_SECONDS
        if self.scheduler.cache.has_unsaved:
            self.disk.wait_until_known(LAST_WRITES_SECONDS)
        while self.disk.wait_until_free(max(0.0, end - time.monotonic())) and self.scheduler.maintain_idle():
            pass
        self.disk.close()

    def is_steady(self, requests: Iterable[Request]) -> bool:
        """Return whether no reader, no time limit, no draft and no prefix needs a turn at rest.

        No request is to be paused or resumed, no prompt's time limit can expire, no choice is due to be drafted for,
        no prefix is due to be copied, and no choice to be moved.
        """
        for request in requests:
            expires = request.status is RequestStatus.PREFILL and request.params.max_prompt_seconds is not None
            if expires or self._must_pause(request) != request.paused:
                return False
        if self.scheduler.cache.maintenance_is_due or self.scheduler.debt.is_due:
            return False
        return not self._drafts.are_due(self.scheduler.active)

    def member(self, item: StepItem) -> StepMember:
        choice = self.scheduler.choice(item.seq)
        phase = "decode" if choice.generated and item.n_tokens == 1 else "prefill"
        return StepMember(choice.request, choice.index, phase)

    def take(self, rows: Sequence[StepRow], observer: Observer) -> list[Update]:
        """Take over the results of a step."""
        updates: list[Update] = []
        # Each row is looked at first: a faulty row ends its request, which frees the slots of its siblings' rows. Rows
        # of choices that ended beside a step ahead are ignored, because nobody gets their tokens.
        for choice, row in [(self.scheduler.choice(row.seq), row) for row in rows if self.scheduler.holds(row.seq)]:
            if choice.seq is None:
                continue  # a sibling's row has ended the request
            choice.n_committed += row.n_tokens
            choice.prompt_logprobs += [TokenLogprobs(*described) for described in row.described]
            updates += prompt_progress(choice)
            updates += self._take_certain(choice, observer)
            n_before = len(choice.generated)
            updates += self._take_tokens(choice, row.sampled, observer)
            if choice.drafts is not None:
                n_taken = len(choice.generated) - n_before
                choice.drafts.follow([sampled.token for sampled in row.sampled], n_taken=n_taken)
            if row.fault is not LogitFault.NONE and choice.seq is not None:
                updates.append(self._fail(choice.request, FAULTS[row.fault], blamed(choice, row.fault), keep=False))
        return updates

    def _take_certain(self, choice: Choice, observer: Observer) -> list[Update]:
        """Generate what certainly follows the prompt, once that is computed."""
        if not choice.certain or choice.n_committed < len(choice.prompt):
            return []
        certain, choice.certain = choice.certain, ()
        updates = self._take_tokens(choice, [SampledToken(token) for token in certain], observer)
        choice.n_certain = len(choice.generated)
        return updates

    def _take_tokens(self, choice: Choice, sampled: Iterable[SampledToken], observer: Observer) -> list[Update]:
        """Add tokens to a choice, until it ends."""
        updates: list[Update] = []
        for token in sampled:
            if choice.seq is None:
                break  # the last one has ended it
            updates.append(self._take_token(choice, token, observer))
        return updates

    def _take_token(self, choice: Choice, row: SampledToken, observer: Observer) -> Update:
        if choice.leads and not choice.generated:
            self.scheduler.prompt_computed(choice)
        if any(known != row.token for known in choice.next_known(1)):
            return self._fail(choice.request, DIVERGED, None, keep=False)
        self.n_generated += choice.max_tokens > 0
        try:
            delta = add_token(choice, row, self.core.model, observer)
        except ConstraintError as error:
            return self._fail(choice.request, str(error), error.param, keep=True)
        return Progress(choice.request, delta) if choice.finish_reason is None else self._finish_choice(choice, delta)

    def _finish_choice(self, choice: Choice, delta: Delta) -> Update:
        assert choice.finish_reason is not None
        request = choice.request
        self.steps.come_to_rest()
        if choice.media and all(one.finish_reason for one in request.choices):
            self._encoding.withdraw(request)
        self._drafts.release([choice])
        self.scheduler.release(choice)
        if any(sibling.finish_reason is None for sibling in request.choices):
            return Progress(request, delta)
        self._drafts.remember(request)
        return Finished(request, choice.finish_reason, delta)

    def _fail(self, request: Request, error: str, param: str | None, *, keep: bool) -> Finished:
        self.release(request, keep=keep)
        return Finished(request, FinishReason.ERROR, error=error, param=param)


def prompt_progress(choice: Choice) -> Sequence[Update]:
    """Return how much of the prompt is computed, if the request asks for that."""
    if choice.generated or not choice.request.params.prompt_progress:
        return ()
    done = min(choice.n_committed, len(choice.prompt))
    delta = Delta(choice.index, "", prompt_done=done, is_encoding=bool(choice.unencoded))
    return [Progress(choice.request, delta)]
