"""The options of a program's calls, for type checkers: the fields of GenerationParams and SamplingParams."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pyllmcancel.constraints.protocol import ConstraintFactory


class Options(TypedDict, total=False):
    """A test compares the names and types with those of the two classes, which check the values."""

    n: int
    max_tokens: int | None
    stop: tuple[str, ...]
    timeout: float | None
    queue_timeout: float | None
    idle_timeout: float | None
    constraint: ConstraintFactory | None
    prompt_logprobs: bool
    reuse_prefix: bool
    max_prompt_seconds: float | None
    max_predict_seconds: float | None
    min_indent: int
    repetition_limit: int
    prompt_progress: bool
    visible_tokens: frozenset[int]
    all_visible: bool
    stop_tokens: frozenset[int]
    stop_shown: bool
    token_healing: bool | None
    prediction: tuple[int, ...]
    draft_max: int | None
    slot: int | None
    adapters: tuple[tuple[int, float], ...] | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_last_n: int
    seed: int
    ignore_eos: bool
    n_logprobs: int | None
    logit_bias: tuple[tuple[int, float], ...]
    grammar: str
    grammar_prefix: str
    grammar_triggers: tuple[tuple[str, str], ...]
    thinking_start: str
    thinking_ends: tuple[str, ...]
    top_n_sigma: float
    dynatemp_range: float
    dynatemp_exponent: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    samplers: tuple[str, ...]
    logprobs_after_sampling: bool
