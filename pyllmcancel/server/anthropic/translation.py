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
from pyllmcancel.server.anthropic.body import (
    AutoChoice,
    CountBody,
    EnabledThinking,
    MessagesBody,
    NamedChoice,
    NoChoice,
)
from pyllmcancel.server.anthropic.tools import CustomTool, tool_changes
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.messages import ContentPart, Message, TextPart
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.error_handlers import invalid_body
from pyllmcancel.server.media.parts import ImagePart
from pyllmcancel.server.wire.fields import GeneratingBody
from pyllmcancel.server.wire.llama_fields import LoraFields

Content = str | list[ContentPart]
Ignore = Callable[[str], None]
# Claude Code puts this before the system's text for its own server. Parts of it change with every request, so that no
# prefix of the prompt could be reused.
BILLING = "x-anthropic-billing-header:"
CHOICES = {"auto": "auto", "any": "required"}
# Chat templates know only these three.
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def counted_chat(body: CountBody) -> ChatBody:
    """Return the chat whose tokens are counted; ApiError if a part that is well-formed here is not valid in a chat."""
    return _chat(_conversation(body))


def chat_of(body: MessagesBody) -> ChatBody:
    """Return the chat that a message asks for; raises as `counted_chat`."""
    common = {name: getattr(body, name) for name in (*GeneratingBody.model_fields, *LoraFields.model_fields)}
    fields = common | _conversation(body)
    # As llama-server's field, because OpenAI's cannot be 0.
    fields["n_predict"] = body.max_tokens
    fields |= {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k}
    fields["stop"] = body.stop_sequences
    return _chat(fields)


def _chat(fields: dict[str, Any]) -> ChatBody:
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error) from error


def _conversation(body: CountBody) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [*_system(body), *_messages(body.messages, body.ignore)],
        "chat_template_kwargs": _template_variables(body),
    }
    if isinstance(body.thinking, EnabledThinking):
        fields["thinking_budget_tokens"] = body.thinking.budget_tokens
    if _goes_on(body.messages[-1]):
        fields["continue_final_message"] = True
    for place, tool in enumerate(body.tools or ()):
        if tool.is_hosted:
            body.ignore(f"tools[{place}]")
    if body.offered:
        fields["tools"] = [_tool(tool) for _, tool in body.offered]
    if body.tool_choice is not None:
        fields |= _tool_choice(body.tool_choice)
    if body.output is not None:
        schema = {"name": "output", "schema": body.output.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _system(body: CountBody) -> Iterator[Message]:
    texts = [body.system] if isinstance(body.system, str) else [block.text for block in body.system or []]
    text = BETWEEN.join(text for text in texts if not text.startswith(BILLING))
    if text:
        yield Message(role="system", content=text)


def _messages(messages: Sequence[TurnMessage], ignore: Ignore) -> Iterator[Message]:
    for message in _since_compaction(messages):
        if message.role == "assistant":
            said = _assistant(message, ignore)
            if said is not None:
                yield said
            continue
        results, parts = _user_parts(message, ignore)
        yield from results
        if parts:
            yield Message(role=message.role, content=_content(parts))


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


def _read(block: ForeignBlock, ignore: Ignore) -> str:
    """Return the text of a block; a block that has none, and names no tools, is ignored and reported."""
    if not block.text and not any(tool_changes(block.type, block.fields)):
        ignore(f"messages.content.{block.type}")
    return block.text


def _user_parts(message: TurnMessage, ignore: Ignore) -> tuple[list[Message], list[str | ImagePart]]:
    """Return the results of tools, which follow their calls immediately, and then texts and images."""
    if isinstance(message.content, str):
        return [], [message.content]
    results: list[Message] = []
    parts: list[str | ImagePart] = []
    for block in message.content:
        match block:
            case ToolResultBlock():
                results.append(Message(role="tool", tool_call_id=block.tool_use_id, content=_result(block, ignore)))
            case ToolUseBlock() | ThinkingBlock():
                raise _misplaced(block.type, "assistant", message.role)
            case _:
                shown = _shown(block, ignore)
                if shown or not isinstance(block, ForeignBlock):
                    parts.append(shown)
    return results, parts


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
            return _read(block, ignore)
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


def _assistant(message: TurnMessage, ignore: Ignore) -> Message | None:
    """Return the message with its texts as the model wrote them, in one piece; None if none of its blocks can be
    read.
    """
    if isinstance(message.content, str):
        return Message(role="assistant", content=message.content)
    texts: list[str] = []
    thoughts, calls = [], []
    for block in message.content:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ForeignBlock():
                if text := _read(block, ignore):
                    texts.append(f"{BETWEEN if texts else ''}{text}{BETWEEN}")
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock() | DocumentBlock() | SearchResultBlock() | ImageBlock():
                raise _misplaced(block.type, "user", "assistant")
    if message.content and not (texts or thoughts or calls):
        return None
    fields: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        fields["reasoning_content"] = "".join(thoughts)
    if calls:
        fields["tool_calls"] = calls
    return Message.model_validate(fields)


def _misplaced(kind: str, owner: str, role: str) -> ApiError:
    message = f"messages: a block of type {kind!r} is the {owner}'s, not the {role}'s"
    return ApiError(400, message, param="messages", code="invalid_request")


def _tool(tool: CustomTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema, "strict": tool.strict}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _tool_choice(choice: AutoChoice | NamedChoice | NoChoice) -> dict[str, Any]:
    match choice:
        case NoChoice():
            return {"tool_choice": "none"}
        case AutoChoice():
            found: dict[str, Any] = {"tool_choice": CHOICES[choice.type]}
        case NamedChoice():
            found = {"tool_choice": {"type": "function", "function": {"name": choice.name}}}
    return found | {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else found


def _template_variables(body: CountBody) -> dict[str, Any]:
    """Return whether to think, and how much, as variables: a template ignores variables that it does not know."""
    found: dict[str, Any] = {}
    if body.effort is not None:
        found["reasoning_effort"] = EFFORTS[body.effort]
    if body.thinking is not None:
        found["enable_thinking"] = body.thinking.type != "disabled"
    return found


def _goes_on(last: TurnMessage) -> bool:
    """Return whether the answer continues this message, which must be the assistant's and have a text."""
    if last.role != "assistant" or isinstance(last.content, str):
        return last.role == "assistant" and bool(last.content)
    has_text = any(isinstance(block, TextBlock) and block.text for block in last.content)
    return has_text and not any(isinstance(block, ToolUseBlock) for block in last.content)
