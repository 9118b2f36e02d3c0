"""The fields of llama-server for limits and reports of an answer, which both dialects have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pyllmcancel.server.limits import MAX_FIELD_PATH
from pyllmcancel.server.wire.drafting import DraftLimit
from pyllmcancel.server.wire.fields import MAX_MS, GeneratingBody, between, seconds
from pyllmcancel.server.wire.lora import LoraFields
from pyllmcancel.server.wire.sampling import MAX_INT


class LlamaFields(LoraFields, GeneratingBody):
    n_indent: int | None = between(
        0, 1000, "llama-server's: a line with fewer blanks at its beginning ends the answer."
    )
    t_max_prompt_ms: int | None = between(
        -1, MAX_MS, "llama-server's: time limit for the prompt, after which the answer is empty."
    )
    t_max_predict_ms: int | None = between(
        -1, MAX_MS, "llama-server's: time limit from the first token, which applies once the answer has a line feed."
    )
    cache_prompt: bool | None = Field(
        None, description="llama-server's: start from the longest cached prefix of the prompt (the default)."
    )
    draft_max: DraftLimit = None
    id_slot: int | None = between(
        -1,
        MAX_INT,
        "llama-server's: the slot from whose prefix the request goes on, with `--slot-save-path`; -1: any. Without"
        " that option it has no effect: every slot can use what any other has computed.",
    )
    sse_ping_interval: int | None = between(
        -1, MAX_INT, "llama-server's: seconds of silence until a ping; -1: no pings."
    )
    response_fields: list[Annotated[str, Field(max_length=MAX_FIELD_PATH)]] | None = Field(
        None,
        max_length=128,
        fail_fast=True,
        description=(
            "llama-server's: answer with these fields only, if not in a stream; `a/b` is the field b of a. A chat or a"
            " completion of OpenAI's dialect that has none of them is whole."
        ),
    )
    timings_per_token: bool | None = Field(
        None, description="llama-server's: add timings to every event, not to the last one only."
    )
    return_progress: bool | None = Field(
        None, description="llama-server's: stream the progress while the prompt is computed."
    )
    return_tokens: bool | None = Field(None, description="llama-server's: add the generated tokens as `tokens`.")

    @property
    def ping_interval(self) -> int | None:
        return self.sse_ping_interval

    def limits(self) -> dict[str, Any]:
        """Return the fields of GenerationParams that are made of these."""
        return {
            "timeout": self.timeout,
            "queue_timeout": self.queue_timeout,
            "idle_timeout": self.idle_timeout,
            "reuse_prefix": self.cache_prompt is not False,
            "max_prompt_seconds": seconds(self.t_max_prompt_ms),
            "max_predict_seconds": seconds(self.t_max_predict_ms),
            "min_indent": self.n_indent or 0,
            "prompt_progress": bool(self.return_progress) and self.stream,
            "draft_max": self.draft_max,
            "slot": self.id_slot if self.id_slot is not None and self.id_slot >= 0 else None,
        }
