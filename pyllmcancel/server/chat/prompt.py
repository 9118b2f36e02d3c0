"""Render a chat's messages as the prompt's text; what the model's template does not know is reworded for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyllmcancel.chat_template import OWN_VARIABLES
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.pausing import Pause, no_pause
from pyllmcancel.server.bodies import check_size
from pyllmcancel.server.chat.tools import ToolPlan, tool_plan
from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.limits import MAX_ARGUMENT_VALUES

if TYPE_CHECKING:
    from pyllmcancel.chat_template import ChatTemplate
    from pyllmcancel.server.chat.body import ChatBody, Message
    from pyllmcancel.server.tokens import TextReader

USUAL_ROLES = ("system", "developer", "user", "assistant", "tool")
HINT = """\
You can call functions. To call one, answer with this JSON and nothing else:
{"name": "the function's name", "arguments": {"its arguments": "..."}}
These are the functions, with the JSON schemas of their arguments:
"""


def read_chat(
    reader: TextReader, template: ChatTemplate, body: ChatBody, pause: Pause
) -> tuple[ToolPlan | None, Sequence[int], frozenset[int]]:
    """Which tools may be called, the conversation's tokens, and the control tokens that are to be seen."""
    plan = tool_plan(body, template)
    text = prompt_text(body, template, plan, pause)
    pause()
    visible = frozenset() if plan is None else plan.visible_tokens(reader.model)
    return plan, reader.chat(text, "messages", pause), visible


def prompt_text(body: ChatBody, template: ChatTemplate, plan: ToolPlan | None, pause: Pause = no_pause) -> str:
    """The conversation as the model was trained to read it.

    Raises
    ------
    InvalidRequestError, ApiError
        The template refuses the messages, or does not know a role or a variable.
    """
    messages = template_messages(body.messages, template)
    variables = template_variables(body, template)
    if plan is not None:
        if plan.format.native:
            variables["tools"] = list(plan.shown)
        else:
            messages = with_hint(messages, template, plan)
    if body.add_generation_prompt is not None:
        variables["add_generation_prompt"] = body.add_generation_prompt
    # Rendered before the roles are looked at: the template's own refusal says more.
    text = template.render(messages, pause, **variables)
    for message in body.messages:
        if message.role not in USUAL_ROLES and not template.knows_role(message.role):
            raise InvalidRequestError(f"the chat template knows no role {message.role!r}", "messages")
    return text


def template_messages(messages: Sequence[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    """The messages in the template's own words."""
    names = {call.id: call.function.name for message in messages for call in message.tool_calls or []}
    found = []
    for message in messages:
        entry = message.for_template()
        if message.role == "developer" and not template.knows_role("developer"):
            entry["role"] = "system"
        elif message.role == "tool" and not template.knows_role("tool"):
            name = names.get(message.tool_call_id or "", "the function")
            entry = {"role": "user", "content": f"{name} returned: {message.text}"}
        elif message.tool_calls and "tool_calls" not in template.source:
            calls = [json.dumps(call, ensure_ascii=False) for call in map(_plain_call, entry.pop("tool_calls"))]
            entry["content"] = "\n".join([entry["content"], *calls] if entry["content"] else calls)
        elif message.tool_calls and template.object_arguments:
            for call in entry["tool_calls"]:
                call["function"]["arguments"] = _parsed(call["function"]["arguments"])
        if message.role == "tool" and "name" not in entry and message.tool_call_id in names:
            entry["name"] = names[message.tool_call_id]
        found.append(entry)
    return found


def with_hint(messages: list[dict[str, Any]], template: ChatTemplate, plan: ToolPlan) -> list[dict[str, Any]]:
    """Describe the tools in the first message: not every template has a system's message."""
    hint = HINT + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in plan.shown)
    first = messages[0]
    if first["role"] == "system":
        told = first | {"content": f"{first['content']}\n\n{hint}"}
        return [told, *messages[1:]]
    system = {"role": "system", "content": hint}
    if template.accepts([system, {"role": "user", "content": ""}]):
        return [system, *messages]
    return [first | {"content": f"{hint}\n\n{first['content']}"}, *messages[1:]]


def template_variables(body: ChatBody, template: ChatTemplate) -> dict[str, Any]:
    """What the client tells the template itself."""
    variables = dict(body.chat_template_kwargs or {})
    for name in OWN_VARIABLES & variables.keys():
        raise InvalidRequestError(f"{name} has a field of its own, or is the server's", "chat_template_kwargs")
    effort = body.reasoning_effort
    if effort is None:
        return variables
    if "reasoning_effort" in template.variables:
        return {"reasoning_effort": effort} | variables
    if "enable_thinking" in template.variables:
        # A switch, not a scale.
        return {"enable_thinking": effort != "none"} | variables
    message = "unsupported field: reasoning_effort (this model's chat template knows nothing of it)"
    raise ApiError(400, message, param="reasoning_effort", code="unsupported_field")


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"name": function["name"], "arguments": _parsed(function["arguments"])}


def _parsed(arguments: str) -> Any:
    """Arguments as an object; as they are if a model has written what is none."""
    try:
        check_size(arguments.encode(), MAX_ARGUMENT_VALUES)
        found = json.loads(arguments)
    except (ValueError, ApiError):
        return arguments
    return found if isinstance(found, dict) else arguments
