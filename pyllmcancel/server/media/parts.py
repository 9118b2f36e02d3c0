"""Pictures and sounds in a content, as OpenAI's clients send them."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from pyllmcancel.media.values import MediaKind, new_marker
from pyllmcancel.server.wire.fields import CacheHint, RequestBody, optional

WORDS = {MediaKind.IMAGE: "picture", MediaKind.AUDIO: "sound"}


def _in_object(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


class Marked(RequestBody):
    """A part whose place in a prompt is marked by a text of its own."""

    cache_control: CacheHint = None
    prompt_cache_breakpoint: CacheHint = None

    @cached_property
    def marker(self) -> str:
        return new_marker()


class ImageUrl(RequestBody):
    url: str = Field(description="A `data:` URL or base64; an `http`, `https` or `file` URL if the server allows it.")
    detail: str | None = optional("Without effect: the model's projector chooses the resolution.")


class ImagePart(Marked):
    kind: ClassVar = MediaKind.IMAGE
    type: Literal["image_url"]
    image_url: Annotated[ImageUrl, BeforeValidator(_in_object)]

    @property
    def source(self) -> str:
        return self.image_url.url


class InputAudio(RequestBody):
    data: str | None = optional("Base64, or any URL that a picture may have.")
    url: str | None = optional("llama-server's other name for `data`.")
    format: str | None = optional("Without effect: the format is recognised.")


class AudioPart(Marked):
    kind: ClassVar = MediaKind.AUDIO
    type: Literal["input_audio"]
    input_audio: InputAudio

    _content: bytes | None = PrivateAttr(None)  # of a file that was uploaded; set once, when it is made

    @classmethod
    def of(cls, content: bytes) -> AudioPart:
        """Return the part of a file that was uploaded."""
        part = cls(type="input_audio", input_audio=InputAudio.model_validate({}))
        part._content = content
        return part

    @property
    def source(self) -> str | bytes:
        if self._content is not None:
            return self._content
        return self.input_audio.data or self.input_audio.url or ""


MediaPart = ImagePart | AudioPart
