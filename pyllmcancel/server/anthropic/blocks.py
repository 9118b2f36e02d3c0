"""The blocks of a message's content, as clients send them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag

from pyllmcancel.server.chat.hosted import Foreign, hosted_text
from pyllmcancel.server.media.parts import ImagePart, ImageUrl
from pyllmcancel.server.wire.fields import CacheHint, RequestBody, kind_of, of_known_types, optional, text_or

T = TypeVar("T")
BETWEEN = "\n"  # between the texts of one turn
KNOWN = frozenset({"text", "image", "document", "search_result", "tool_use", "tool_result", "thinking"})
# Blocks of Anthropic's servers. Those of tools are of many kinds, and new ones appear.
FOREIGN = re.compile(
    r"redacted_thinking|compaction|container_upload|fallback|browser_state|mcp_tool_listing"
    r"|tool_(reference|addition|removal)|\w+_tool_(use|result)"
)


KNOWN_TYPES = of_known_types("a block", lambda kind: kind in KNOWN or FOREIGN.fullmatch(kind), "; text and images are")


# A text, or blocks. The kind is checked beforehand, so that the error is about the one that was meant.
TextOr = Annotated[Annotated[str, Tag("text")] | Annotated[list[T], KNOWN_TYPES, Tag("<blocks>")], text_or("<blocks>")]


class Hinted(RequestBody):
    cache_control: CacheHint = None


class TextBlock(Hinted):
    type: Literal["text"]
    text: str
    citations: Any = optional("Without effect: it names the text's source.")


class Base64Source(RequestBody):
    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(RequestBody):
    type: Literal["url"]
    url: str = Field(pattern="^https?://")


class ImageBlock(Hinted):
    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source | UrlSource, Field(discriminator="type")],
        of_known_types("an image's source", ("base64", "url").__contains__, "; base64 and url are"),
    ]

    @property
    def part(self) -> ImagePart:
        """The image as a part of a chat."""
        source = self.source
        url = source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"
        return ImagePart(type="image_url", image_url=ImageUrl(url=url, detail=None))


class PlainSource(RequestBody):
    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str


class ContentSource(RequestBody):
    type: Literal["content"]
    content: TextOr[TextBlock]


class DocumentBlock(Hinted):
    type: Literal["document"]
    source: Annotated[
        Annotated[PlainSource | ContentSource, Field(discriminator="type")],
        of_known_types("a document's source", ("text", "content").__contains__, "; only text is"),
    ]
    title: str | None = None
    context: str | None = None
    citations: Any = optional("Without effect: answers have no citations.")

    @property
    def text(self) -> str:
        text = self.source.data if isinstance(self.source, PlainSource) else joined(self.source.content)
        return BETWEEN.join(part for part in (self.title, self.context, text) if part)


class SearchResultBlock(Hinted):
    type: Literal["search_result"]
    title: str
    source: str
    content: list[TextBlock]
    citations: Any = optional("Without effect: answers have no citations.")

    @property
    def text(self) -> str:
        return BETWEEN.join((self.title, self.source, joined(self.content)))


class ForeignBlock(Foreign):
    """A block that only Anthropic's servers make."""

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
                return hosted_text(self)


def _of_which(block: Any) -> str:
    return "<foreign>" if kind_of(block) not in (*KNOWN, None) else "<own>"


OrForeign = Annotated[Annotated[T, Tag("<own>")] | Annotated[ForeignBlock, Tag("<foreign>")], Discriminator(_of_which)]
Textual = TextBlock | DocumentBlock | SearchResultBlock
Shown = Textual | ImageBlock


class ToolUseBlock(Hinted):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]
    caller: Any = None


class ToolResultBlock(Hinted):
    type: Literal["tool_result"]
    tool_use_id: str
    content: TextOr[OrForeign[Annotated[Shown, Field(discriminator="type")]]] | None = None
    is_error: bool | None = None


class ThinkingBlock(RequestBody):
    type: Literal["thinking"]
    thinking: str
    signature: str = Field("", description="Any signature will do: nothing is signed here.")


Block = Shown | ToolUseBlock | ToolResultBlock | ThinkingBlock
Content = TextOr[OrForeign[Annotated[Block, Field(discriminator="type")]]]


class TurnMessage(RequestBody):
    role: Literal["user", "assistant", "system"]
    content: Content


def joined(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else BETWEEN.join(block.text for block in content)
