"""llama-server's fields as the engine's parameters, and the reverse, for `generation_settings`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.media.values import new_marker
from pyllmcancel.requests.params import GenerationParams
from pyllmcancel.server.limits import MAX_BIASES
from pyllmcancel.server.llama.body import PromptObject
from pyllmcancel.server.media.gathering import Given, gathered, media_tokens
from pyllmcancel.server.wire.fields import RENAMED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel._native import Model
    from pyllmcancel.pausing import FlaggedPause, Pause
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.llama.body import AnsweringBody, LlamaCompletionBody, LogitBias, Prompt
    from pyllmcancel.server.media.gathering import Gathered
    from pyllmcancel.server.state import ServerState


SAME_NAME = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "min_keep", "samplers", "ignore_eos", "grammar", "seed"),
)


def generation_params(state: ServerState, body: AnsweringBody, pause: Pause) -> GenerationParams:
    """Return the parameters of generation, with the server's defaults for those that the client leaves open."""
    config = state.config
    defaults, given, limits = config.request_defaults(), body.given(), body.limits(config)
    given["temperature"] = max(0.0, given.get("temperature", defaults.temperature))
    if body.dry_base is not None and body.dry_base < 1.0:
        given["dry_base"] = defaults.dry_base
    if body.grammar and body.json_schema is not None:
        raise InvalidRequestError("grammar and json_schema cannot be combined", "json_schema")
    given |= {"grammar": body.grammar or defaults.grammar, "n_logprobs": body.n_probs or None}
    given["logit_bias"] = token_biases(body, state.engine.model, pause)
    if body.n_predict == 0:
        # No client waits for a prompt that is computed for the cache alone: llama.vim allows it a millisecond.
        limits["max_prompt_seconds"] = None
    return GenerationParams(
        sampling=replace(defaults, **given),
        n=body.n_cmpl,
        token_healing=body.token_healing,
        **limits,
    )


def token_biases(body: AnsweringBody, model: Model, pause: Pause) -> tuple[tuple[int, float], ...]:
    """Return the bias of each token. A text stands for all its tokens, but a number as an object's key stands for
    that token.
    """
    found: list[tuple[int, float]] = []
    for token, amount in _spelled_out(body.logit_bias or [], model, pause):
        if token >= model.n_vocab:
            raise InvalidRequestError(f"token {token} is not in the vocabulary of {model.n_vocab:,}", "logit_bias")
        if len(found) == MAX_BIASES:
            raise InvalidRequestError(f"more than {MAX_BIASES:,} tokens have a bias", "logit_bias")
        found.append((token, amount))
    return tuple(found)


def _spelled_out(given: LogitBias, model: Model, pause: Pause) -> Iterable[tuple[int, float]]:
    for what, bias in given.items() if isinstance(given, dict) else given:
        amount = -math.inf if bias is False else float(bias)
        if isinstance(what, int):
            yield what, amount
        elif isinstance(given, dict) and what.isascii() and what.isdigit():
            yield int(what[:12]), amount  # with more digits than any vocabulary has
        else:
            pause()
            for token in model.tokenize(what, add_special=False):
                yield token, amount


# -- generation_settings ----------------------------------------------------------------------------------------------

# Settings that llama-server has and this server lacks, with the values that mean unused.
ABSENT: dict[str, Any] = {
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "n_keep": 0,
    "n_discard": 0,
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "backend_sampling": False,
}


def settings_json(params: GenerationParams, draft_sources: Iterable[str]) -> dict[str, Any]:
    """Return the settings by which tokens are chosen and drafted: the part that ``/slots`` and ``/props`` show."""
    sampling = params.sampling
    shown = {name: getattr(sampling, name) for name in SAME_NAME if name not in ("grammar", "dry_sequence_breakers")}
    shown |= {name: getattr(sampling, ours) for name, ours in RENAMED.items()}
    limit = -1 if params.max_tokens is None else params.max_tokens
    return (
        ABSENT
        | shown
        | {
            "speculative.types": "none" if params.draft_max == 0 else ",".join(draft_sources) or "none",
            "samplers": list(sampling.samplers),
            "n_probs": sampling.n_logprobs or 0,
            "max_tokens": limit,
            "n_predict": limit,
        }
    )


def asked_settings(body: AnsweringBody) -> dict[str, Any]:
    """Return the settings that are the body's own, which need not be kept for them."""
    asked: dict[str, Any] = {"stream": body.stream, "n_keep": body.n_keep or 0, "n_discard": body.n_discard or 0}
    lora = [entry.model_dump() for entry in body.lora or []]
    return asked | {"timings_per_token": bool(body.timings_per_token), "lora": lora}


def all_settings_json(
    params: GenerationParams, draft_sources: Iterable[str], asked: Mapping[str, Any], eog_tokens: Iterable[int]
) -> dict[str, Any]:
    """`settings_json`, those that are `asked`, and what may be long; `eog_tokens` are what `ignore_eos` bans."""
    sampling = params.sampling
    biases = [*sampling.logit_bias, *((token, -math.inf) for token in eog_tokens if sampling.ignore_eos)]
    return settings_json(params, draft_sources) | {
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "stop": list(params.stop),
        # JSON has no infinity.
        "logit_bias": [{"bias": None if math.isinf(bias) else bias, "token": token} for token, bias in biases],
        "grammar": sampling.grammar,
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
        **asked,
    }


# -- prompts ----------------------------------------------------------------------------------------------------------


class MediaText(NamedTuple):
    """A prompt, and its pictures and sounds, if it has any."""

    text: str | Sequence[int | str]
    media: Gathered


async def read_prompts(incoming: Incoming[LlamaCompletionBody], prompts: Sequence[Prompt]) -> list[MediaText]:
    """Return the prompts, after their pictures and sounds were fetched. Raises as `gathered`."""
    found: list[MediaText] = []
    for prompt in prompts:
        text, given = prompt.prompt_string if isinstance(prompt, PromptObject) else prompt, list[Given]()
        if isinstance(prompt, PromptObject) and prompt.multimodal_data:
            text, given = with_own_markers(prompt, incoming.state.media_marker)
        found.append(MediaText(text, await gathered(incoming, given, "prompt")))
    return found


def with_own_markers(prompt: PromptObject, marker: str) -> tuple[str, list[Given]]:
    """Return the text with a marker of its own for each picture and sound."""
    pieces = prompt.prompt_string.split(marker)
    given = [Given(new_marker(), source, None) for source in prompt.multimodal_data]
    if len(pieces) != len(given) + 1:
        message = f"the prompt has the media_marker of /props {len(pieces) - 1} times, but multimodal_data has"
        raise InvalidRequestError(f"{message} {len(given)} entries", "prompt")
    text = pieces[0] + "".join(one.marker + piece for one, piece in zip(given, pieces[1:], strict=True))
    return text, given


def tokens_of(state: ServerState, prompt: MediaText, pause: FlaggedPause) -> Sequence[int]:
    """Return the tokens of one prompt; special tokens may be spelled out in its texts. With pictures it is work for a
    worker, however short the body was.
    """
    if not isinstance(prompt.text, str) or not prompt.media:
        return state.texts.mixed(prompt.text, "prompt", pause, add_special=True, parse_special=True)
    state.texts.check_length(len(prompt.text), "prompt")
    return media_tokens(state, prompt.text, prompt.media, pause)
