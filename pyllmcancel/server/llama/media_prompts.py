"""Prompts in which the client itself has written where pictures and sounds stand, by the marker of ``/props``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.media.values import new_marker
from pyllmcancel.server.llama.body import PromptObject
from pyllmcancel.server.llama.params import prompt_tokens
from pyllmcancel.server.media.gathering import Given, gathered, media_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel.pausing import FlaggedPause
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.llama.body import LlamaCompletionBody, Prompt
    from pyllmcancel.server.media.gathering import Gathered
    from pyllmcancel.server.state import ServerState


class MediaText(NamedTuple):
    """A text with pictures and sounds."""

    text: str
    media: Gathered


async def read_prompts(incoming: Incoming[LlamaCompletionBody], prompts: Sequence[Prompt]) -> list[Prompt | MediaText]:
    """Return the prompts; those with pictures and sounds after what they need was fetched. Raises as `gathered`."""
    found: list[Prompt | MediaText] = []
    for prompt in prompts:
        if isinstance(prompt, PromptObject) and prompt.multimodal_data:
            text, given = with_own_markers(prompt, incoming.state.media_marker)
            media = await gathered(incoming.http, given, "prompt")
            found.append(MediaText(text, media))
        else:
            found.append(prompt)
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


def tokens_of(state: ServerState, prompt: Prompt | MediaText, pause: FlaggedPause) -> Sequence[int]:
    """Return the tokens of one prompt. With pictures it is work for a worker, however short the body was."""
    if not isinstance(prompt, MediaText):
        return prompt_tokens(state.texts, prompt, pause)
    state.texts.check_length(len(prompt.text), "prompt")
    return media_tokens(state, prompt.text, prompt.media, pause)
