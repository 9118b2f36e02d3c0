"""The translation of a Messages body into a chat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from pyllmcancel.server.anthropic.blocks import (
    BETWEEN,
    DocumentBlock,
    ForeignBlock,
    ImageBlock,
    SearchResultBlock,
    Shown,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    TurnMessage,
)
from pyllmcancel.server.anthropic.body import CountBody, EnabledThinking, MessagesBody
from pyllmcancel.server.anthropic.tools import tool_changes
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.messages import ContentPart, Message, TextPart
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.error_handlers import invalid_body
from pyllmcancel.server.media.parts import ImagePart
from pyllmcancel.server.wire.fields import GeneratingBody
from pyllmcancel.server.wire.generation import LoraFields

Content = str | list[ContentPart]
Ignore = Callable[[str], None]
# Claude Code puts this before the system's text for its own server. Parts of it change with every request, so that no
# prefix of the prompt could be reused.
BILLING = "x-anthropic-billing-header:"
# Fields that have the same names in the chat.
SHARED = (*GeneratingBody.model_fields, *LoraFields.model_fields, "temperature", "top_p", "top_k")
# Blocks that only a user's message may have, or only the model's.
USERS = ToolResultBlock | DocumentBlock | SearchResultBlock | ImageBlock
MODELS = ToolUseBlock | ThinkingBlock
# Chat templates know only these three.
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def chat_of(body: CountBody) -> ChatBody:
    """Return the chat that a message asks for; ApiError if a part that is well-formed here is not valid in a chat."""
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [
            *_system(body),
            *(one for message in _since_compaction(body.messages) for one in _turn(message, body.ignore)),
        ],
        "chat_template_kwargs": _template_variables(body),
    }
    if isinstance(body, MessagesBody):
        fields |= {name: getattr(body, name) for name in SHARED}
        # As llama-server's field, because OpenAI's cannot be 0.
        fields |= {"n_predict": body.max_tokens, "stop": body.stop_sequences}
    if isinstance(body.thinking, EnabledThinking):
        fields["thinking_budget_tokens"] = body.thinking.budget_tokens
    if _goes_on(body.messages[-1]):
        fields["continue_final_message"] = True
    for place, tool in enumerate(body.tools or ()):
        if tool.is_hosted:
            body.ignore(f"tools[{place}]")
    fields["tools"] = [{"type": "function", "function": tool.function} for _, tool in body.offered]
    if body.tool_choice is not None:
        fields["tool_choice"] = body.tool_choice.model_dump(exclude={"disable_parallel_tool_use"})
        if getattr(body.tool_choice, "disable_parallel_tool_use", False):
            fields["parallel_tool_calls"] = False
    output = (body.output_config and body.output_config.format) or body.output_format
    if output is not None:
        schema = {"name": "output", "schema": output.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error) from error


def _system(body: CountBody) -> Iterator[Message]:
    texts = [body.system] if isinstance(body.system, str) else [block.text for block in body.system or []]
    text = BETWEEN.join(text for text in texts if not text.startswith(BILLING))
    if text:
        yield Message(role="system", content=text)


def _since_compaction(messages: Sequence[TurnMessage]) -> Sequence[TurnMessage]:
    """Replace everything that the newest summary sums up by the summary, which the model gets as the user's text."""
    for place, message in reversed(list(enumerate(messages))):
        blocks = message.content if isinstance(message.content, list) else []
        for number, block in reversed(list(enumerate(blocks))):
            if isinstance(block, ForeignBlock) and block.type == "compaction" and block.text:
                summary = TurnMessage(role="user", content=block.text)
                rest = message.model_copy(update={"content": blocks[number + 1 :]})
                return [summary, *([rest] if rest.content else ()), *messages[place + 1 :]]
    return messages


def _turn(message: TurnMessage, ignore: Ignore) -> Iterator[Message]:
    """Iterate over the results of tools, which follow their calls immediately, and then the message itself, unless none
    of its blocks can be read.
    """
    given = message.content
    blocks = [TextBlock(type="text", text=given)] if isinstance(given, str) else given
    is_models = message.role == "assistant"
    parts: list[str | ImagePart] = []
    thoughts, calls = [], []
    for block in blocks:
        if isinstance(block, USERS if is_models else MODELS):
            owner = "user" if is_models else "assistant"
            text = f"messages: a block of type {block.type!r} is the {owner}'s, not the {message.role}'s"
            raise ApiError(400, text, param="messages", code="invalid_request")
        match block:
            case ToolResultBlock():
                yield Message(role="tool", tool_call_id=block.tool_use_id, content=_result(block, ignore))
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ForeignBlock():
                if shown := _shown(block, ignore):
                    parts.append(f"{BETWEEN if parts else ''}{shown}{BETWEEN}" if is_models else shown)
            case _:
                parts.append(_shown(block, ignore))
    if parts or thoughts or calls or (is_models and not blocks):
        # The model's own texts are in one piece, as it wrote them.
        content = "".join(map(str, parts)) if is_models else _content(parts)
        thought = "".join(thoughts) if thoughts else None
        fields = {"role": message.role, "content": content, "reasoning_content": thought, "tool_calls": calls or None}
        yield Message.model_validate(fields)


def _result(block: ToolResultBlock, ignore: Ignore) -> Content:
    content = block.content or ()
    blocks = [content] if isinstance(content, str) else [_shown(block, ignore) for block in content]
    parts: list[str | ImagePart] = [*blocks]
    if block.is_error:
        first = parts.pop(0) if parts and isinstance(parts[0], str) else ""
        parts.insert(0, f"Error: {first}")
    return _content(parts)


def _shown(block: Shown | ForeignBlock, ignore: Ignore) -> str | ImagePart:
    match block:
        case ForeignBlock():
            # A block that has no text, and names no tools, is ignored and reported.
            if not block.text and not any(tool_changes(block.type, block.fields)):
                ignore(f"messages.content.{block.type}")
            return block.text
        case ImageBlock():
            return block.part
        case _:
            return block.text


def _content(parts: Sequence[str | ImagePart]) -> Content:
    """Return a text, if the parts are nothing else, or the parts, whose texts are lines of their own then, too."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return BETWEEN.join(texts)
    return [TextPart(text=part) if isinstance(part, str) else part for part in parts]


def _template_variables(body: CountBody) -> dict[str, Any]:
    """Return whether to think, and how much, as variables: a template ignores variables that it does not know."""
    found: dict[str, Any] = {}
    if body.output_config is not None and body.output_config.effort is not None:
        found["reasoning_effort"] = EFFORTS[body.output_config.effort]
    if body.thinking is not None:
        found["enable_thinking"] = body.thinking.type != "disabled"
    return found


def _goes_on(last: TurnMessage) -> bool:
    """Return whether the answer continues this message, which must be the assistant's and have a text."""
    if last.role != "assistant" or isinstance(last.content, str):
        return last.role == "assistant" and bool(last.content)
    has_text = any(isinstance(block, TextBlock) and block.text for block in last.content)
    return has_text and not any(isinstance(block, ToolUseBlock) for block in last.content)
