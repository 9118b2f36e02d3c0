"""What llama-server's endpoints answer, as pydantic models: for the OpenAPI page. The routes write plain dicts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from pyllmcancel.server.answers import Answer


class Timings(Answer):
    """Milliseconds and tokens; rates count steps, and the first token comes with the prompt's last."""

    cache_n: int = Field(description="Tokens of the prompt that came from the cache.")
    prompt_n: int = Field(description="Tokens of the prompt that were computed.")
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class TokenProbability(Answer):
    """`prob` and `top_probs` with `post_sampling_probs`, otherwise `logprob` and `top_logprobs`."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | None = None
    prob: float | None = None
    top_logprobs: list[TokenProbability] | None = None
    top_probs: list[TokenProbability] | None = None


class PromptProgress(Answer):
    total: int
    cache: int
    processed: int = Field(description="Those from the cache among them.")
    time_ms: int


class CompletionAnswer(Answer):
    """With `response_fields`: only those, each under its path."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    index: int = 0
    content: str = ""
    tokens: list[int] = Field(default=[], description="With `return_tokens`.")
    id_slot: int = -1
    stop: Literal[True] = True
    model: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = Field(0, description="Of the prompt.")
    generation_settings: dict[str, Any] = Field(default={})
    prompt: str = Field("", description="Its tokens' text, special ones spelled out.")
    has_new_line: bool = False
    truncated: bool = Field(False, description="Whether the context is full.")
    stop_type: Literal["eos", "limit", "word"] = "eos"
    stopping_word: str = ""
    tokens_cached: int = Field(0, description="Tokens of prompt and answer that are in the cells now.")
    timings: Timings | None = None
    completion_probabilities: list[TokenProbability] = Field(default=[])


class CompletionEvent(Answer):
    """One event; the last of a complete answer is a CompletionAnswer without text, whose `stop` is true."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: Timings | None = None
    prompt_progress: PromptProgress | None = None
    completion_probabilities: list[TokenProbability] = Field(default=[])


class TokenPiece(Answer):
    id: int
    piece: str | list[int] = Field(description="Text, or bytes where that is only a part of a character.")


class TokensAnswer(Answer):
    tokens: list[int] | list[TokenPiece]


class TextAnswer(Answer):
    content: str


class TokenCount(Answer):
    object: Literal["response.input_tokens"]
    input_tokens: int


class PromptAnswer(Answer):
    prompt: str


class DefaultSettings(Answer):
    params: dict[str, Any]
    n_ctx: int


class PropsAnswer(Answer):
    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    ui: bool
    chat_template: str
    chat_template_caps: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


class NextToken(Answer):
    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: int


class SlotAnswer(Answer):
    """`params` and what follows are there while the slot computes for a request."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    request_id: str | None = Field(None, description="Ours: what it computes for.")
    n_prompt_tokens: int = 0
    n_prompt_tokens_processed: int = 0
    n_prompt_tokens_cache: int = 0
    params: dict[str, Any] | None = None
    next_token: list[NextToken] = Field(default=[])


class LoraAdapter(Answer):
    id: int
    path: str
    scale: float
