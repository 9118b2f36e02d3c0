"""The metrics under llama-server's names, for its dashboards."""

from __future__ import annotations

from typing import NamedTuple

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.engine import Engine
from pyllmcancel.requests.observer import StepRecord
from pyllmcancel.requests.request import Request


class Totals(NamedTuple):
    """Counts of tokens, steps, and cancels by their reasons."""

    prompt_tokens: int
    computed_tokens: int
    wasted_tokens: int
    reused_tokens: int
    saved_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    aborted_steps: int
    cancels: dict[CancelReason, int]


class Work(NamedTuple):
    """Tokens, and the seconds of the choices that had them computed."""

    tokens: float = 0
    seconds: float = 0.0

    def per_second_since(self, former: Work) -> float:
        seconds = self.seconds - former.seconds
        return (self.tokens - former.tokens) / seconds if seconds > 0.0 else 0.0


class LlamaMetrics:
    """The counts that only llama-server has, and the text of all. The engine thread counts, the event loop reads."""

    def __init__(self) -> None:
        self._n_steps = self._n_sequences = self._n_drafts = self._longest = 0
        self._prompt_seconds = self._answer_seconds = 0.0
        self._former = Work(), Work()  # of prompts and of answers, when they were last read

    def step_done(self, record: StepRecord) -> None:
        self._n_steps += 1
        self._n_sequences += len(record.sequences)
        self._n_drafts += sum(part.n_drafted > 0 for part in record.sequences)

    def first_token(self, request: Request, seconds: float) -> None:
        queued = (request.admitted_at or request.arrived_at) - request.arrived_at
        self._prompt_seconds += seconds - queued

    def next_token(self, seconds: float) -> None:
        self._answer_seconds += seconds

    def request_ended(self, request: Request) -> None:
        lengths = (len(choice.prompt) + len(choice.generated) for choice in request.choices)
        self._longest = max(self._longest, *lengths, 0)

    def exposition(self, engine: Engine | None, totals: Totals) -> str:
        """Return all in Prometheus' format. As in llama-server, the throughputs are since the last call."""
        waiting, running = (0, 0) if engine is None else (engine.counts().waiting, engine.counts().running)
        prompts = Work(totals.prompt_tokens, self._prompt_seconds)
        answers = Work(0 if engine is None else engine.n_generated, self._answer_seconds)
        before, self._former = self._former, (prompts, answers)
        lines = (
            ("prompt_tokens_total", "counter", prompts.tokens, "Tokens of prompts computed."),
            ("prompt_tokens_cached_total", "counter", totals.reused_tokens, "Tokens of prompts found in the cache."),
            ("prompt_seconds_total", "counter", prompts.seconds, "Time from admission to the first token."),
            ("tokens_predicted_total", "counter", answers.tokens, "Tokens generated."),
            ("tokens_predicted_seconds_total", "counter", answers.seconds, "Time from the first token to the last."),
            ("n_decode_total", "counter", self._n_steps, "Steps."),
            ("n_tokens_max", "counter", self._longest, "The most tokens of a prompt with its answer."),
            ("spec_decode_num_draft_tokens_total", "counter", totals.drafted_tokens, "Tokens drafted."),
            ("spec_decode_num_accepted_tokens_total", "counter", totals.accepted_tokens, "Drafted tokens accepted."),
            ("spec_decode_num_drafts_total", "counter", self._n_drafts, "Drafts checked."),
            ("prompt_tokens_seconds", "gauge", prompts.per_second_since(before[0]), "Prompt tokens per second."),
            ("predicted_tokens_seconds", "gauge", answers.per_second_since(before[1]), "Generated tokens per second."),
            ("requests_processing", "gauge", running, "Live requests that hold a slot, or were preempted."),
            ("requests_deferred", "gauge", waiting, "Live requests in the queue."),
            ("n_busy_slots_per_decode", "gauge", self._n_sequences / max(1, self._n_steps), "Sequences of a step."),
        )
        return "".join(text_of(*line) for line in lines)


def text_of(name: str, kind: str, value: float, text: str) -> str:
    """Return one metric in Prometheus' format."""
    full = f"llamacpp:{name}"
    return f"# HELP {full} {text}\n# TYPE {full} {kind}\n{full} {value}\n"
