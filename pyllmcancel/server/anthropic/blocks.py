"""The blocks of a message's content, as clients send them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from pyllmcancel.server.chat.hosted import hosted_text
from pyllmcancel.server.media.parts import ImagePart, ImageUrl
from pyllmcancel.server.wire.fields import CacheHint, RequestBody, Sent

T = TypeVar("T")
BETWEEN = "\n"  # between the texts of one turn
KNOWN = frozenset({"text", "image", "document", "search_result", "tool_use", "tool_result", "thinking"})
# Blocks of Anthropic's servers. Those of tools are of many kinds, and new ones appear.
FOREIGN = re.compile(
    r"redacted_thinking|compaction|container_upload|fallback|browser_state|mcp_tool_listing"
    r"|tool_(reference|addition|removal)|\w+_tool_(use|result)"
)


def only_known(content: Any) -> Any:
    """Refuse other types in words: pydantic's own error would list every type that a block is not."""
    for block in content if isinstance(content, list) else []:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in KNOWN and not FOREIGN.fullmatch(kind):
            raise ValueError(f"a block of type {kind[:100]!r} is not supported; text and images are")
    return content


def _form(content: Any) -> str:
    return "text" if isinstance(content, str) else "blocks"


# A text, or blocks. The kind is checked beforehand, so that the error is about the one that was meant.
TextOr = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[T], BeforeValidator(only_known), Tag("blocks")], Discriminator(_form)
]


class TextBlock(RequestBody):
    type: Literal["text"]
    text: str
    cache_control: CacheHint = None
    citations: Any = Field(None, description="Accepted, and without effect: it names the text's source.")


class Base64Source(RequestBody):
    type: Literal["base64"]
    media_type: str
    data: str

    @property
    def address(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(RequestBody):
    type: Literal["url"]
    url: str = Field(pattern="^https?://")

    @property
    def address(self) -> str:
        return self.url


def _of_type(whose: str, types: tuple[str, str], supported: str) -> BeforeValidator:
    """Refuse sources of other types in words: pydantic's own error would not say what is supported."""

    def check(source: Any) -> Any:
        kind = source.get("type") if isinstance(source, dict) else None
        if isinstance(kind, str) and kind not in types:
            raise ValueError(f"{whose} source of type {kind[:100]!r} is not supported; {supported}")
        return source

    return BeforeValidator(check)


class ImageBlock(RequestBody):
    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source | UrlSource, Field(discriminator="type")],
        _of_type("an image's", ("base64", "url"), "base64 and url are"),
    ]
    cache_control: CacheHint = None

    @property
    def part(self) -> ImagePart:
        """The image as a part of a chat."""
        return ImagePart(type="image_url", image_url=ImageUrl(url=self.source.address, detail=None))


class PlainSource(RequestBody):
    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str

    @property
    def text(self) -> str:
        return self.data


class ContentSource(RequestBody):
    type: Literal["content"]
    content: TextOr[TextBlock]

    @property
    def text(self) -> str:
        return joined(self.content)


class DocumentBlock(RequestBody):
    type: Literal["document"]
    source: Annotated[
        Annotated[PlainSource | ContentSource, Field(discriminator="type")],
        _of_type("a document's", ("text", "content"), "only text is"),
    ]
    title: str | None = None
    context: str | None = None
    citations: Any = Field(None, description="Accepted; answers have no citations.")
    cache_control: CacheHint = None

    @property
    def text(self) -> str:
        return BETWEEN.join(part for part in (self.title, self.context, self.source.text) if part)


class SearchResultBlock(RequestBody):
    type: Literal["search_result"]
    title: str
    source: str
    content: list[TextBlock]
    citations: Any = Field(None, description="Accepted; answers have no citations.")
    cache_control: CacheHint = None

    @property
    def text(self) -> str:
        return BETWEEN.join((self.title, self.source, joined(self.content)))


class ForeignBlock(Sent):
    """A block that only Anthropic's servers make: a call of their tools, its result, or another mark."""

    model_config = ConfigDict(extra="allow")

    type: str

    @property
    def fields(self) -> dict[str, Any]:
        """The block's other fields."""
        return self.model_extra or {}

    @property
    def text(self) -> str:
        """The text of the block that a model can read; empty if it has none."""
        match self.type:
            case "tool_reference":
                return f"Tool found: {self.fields.get('tool_name')}"
            case "compaction":
                return str(self.fields.get("content") or "")
            case "redacted_thinking" | "mcp_tool_listing" | "tool_addition" | "tool_removal" | "fallback":
                return ""
            case _:
                return hosted_text({"type": self.type, **self.fields})


def _of_which(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return "foreign" if isinstance(kind, str) and kind not in KNOWN else "own"


OrForeign = Annotated[Annotated[T, Tag("own")] | Annotated[ForeignBlock, Tag("foreign")], Discriminator(_of_which)]
Textual = TextBlock | DocumentBlock | SearchResultBlock
Shown = Textual | ImageBlock


class ToolUseBlock(RequestBody):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]
    caller: Any = None
    cache_control: CacheHint = None


class ToolResultBlock(RequestBody):
    type: Literal["tool_result"]
    tool_use_id: str
    content: TextOr[OrForeign[Annotated[Shown, Field(discriminator="type")]]] | None = None
    is_error: bool | None = None
    cache_control: CacheHint = None


class ThinkingBlock(RequestBody):
    type: Literal["thinking"]
    thinking: str
    signature: str = Field("", description="Any signature is accepted: nothing is signed here.")


Block = Shown | ToolUseBlock | ToolResultBlock | ThinkingBlock
Content = TextOr[OrForeign[Annotated[Block, Field(discriminator="type")]]]


class TurnMessage(RequestBody):
    role: Literal["user", "assistant", "system"]
    content: Content


def joined(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else BETWEEN.join(block.text for block in content)
