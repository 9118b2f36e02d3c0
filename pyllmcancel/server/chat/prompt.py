"""The inputs of the model's template from a chat's body: messages, tools, and the settings of reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.bodies import check_size
from pyllmcancel.server.chat.tool_fields import NamedTool
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.limits import MAX_ARGUMENT_VALUES

if TYPE_CHECKING:
    from pyllmcancel.chat.template import ChatForm, ChatTemplate
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.chat.body import ChatBody
    from pyllmcancel.server.chat.messages import Message
    from pyllmcancel.server.chat.tools import ToolPlan
    from pyllmcancel.server.config import ChatDefaults

USUAL_ROLES = ("system", "developer", "user", "assistant", "tool")
# The variables that a client may not replace, because a template must get each only once.
OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


# Inputs that are a request's own.
OWN_INPUTS = ("tools", "json_schema", "grammar", "chat_template_kwargs")


def render(body: ChatBody, template: ChatTemplate, inputs: Mapping[str, Any], owner: str, pause: Pause) -> ChatForm:
    """Return the conversation as the model was trained to read it, and the form of its answer.

    Parameters
    ----------
    inputs
        The result of `template_inputs`.

    Raises
    ------
    InvalidRequestError
        The template refuses the messages, or does not know a role.
    """
    if any(inputs.get(name) for name in OWN_INPUTS):
        # The compiled template remembers forms of answers by all inputs but the messages. Another owner's request with
        # the same tools must not be quicker for it.
        inputs = {**inputs, "owner": owner}
    form = template.apply(inputs, pause)
    # Checked after rendering: the template's own refusal says more.
    for message in body.messages:
        if message.role not in USUAL_ROLES and not template.knows_role(message.role):
            raise InvalidRequestError(f"the chat template does not know the role {message.role!r}", "messages")
    return form


def template_inputs(body: ChatBody, template: ChatTemplate, plan: ToolPlan, defaults: ChatDefaults) -> dict[str, Any]:
    """Return the inputs as `_native.ChatTemplate.apply` takes them."""
    variables = template_variables(body, template, defaults)
    thinks = variables.get("enable_thinking", True)
    if not isinstance(thinks, bool):
        raise InvalidRequestError("enable_thinking must be true or false", "chat_template_kwargs")
    if plan.may_call and not defaults.jinja:
        raise InvalidRequestError("this server's chat template does not support tools", "tools")
    goes_on = continues(body, defaults)
    opens = body.add_generation_prompt is not False and not goes_on
    inputs = {
        "messages": template_messages(body.messages),
        "tools": [
            tool.model_dump(include={"type": True, "function": True}, exclude_none=True) for _, tool in plan.tools
        ],
        "tool_choice": plan.choice,
        "add_generation_prompt": opens,
        "continue_final_message": goes_on,
        "reasoning_format": body.reasoning_format or defaults.reasoning_format,
        "enable_thinking": thinks,
        "chat_template_kwargs": variables,
    }
    several = body.parallel_tool_calls
    if several is None:  # a single named tool is called only once
        several = template.caps["supports_parallel_tool_calls"] and not isinstance(body.tool_choice, NamedTool)
    inputs["parallel_tool_calls"] = several
    return inputs


def continues(body: ChatBody, defaults: ChatDefaults) -> bool | str:
    """Return whether the answer goes on with the last message, and with which part of it.

    Raises
    ------
    InvalidRequestError
        The last message cannot be continued.
    """
    asked = body.continue_final_message
    last = body.messages[-1]
    if not asked:
        given = last.text or (last.model_extra or {}).get("reasoning_content")
        implied = asked is None and defaults.goes_on and body.add_generation_prompt is None
        return bool(implied and last.role == "assistant" and given and not last.tool_calls)
    if body.add_generation_prompt:
        raise InvalidRequestError("contradicts add_generation_prompt", "continue_final_message")
    if not defaults.jinja:
        raise InvalidRequestError("this server's chat template cannot continue a message", "continue_final_message")
    if last.role != "assistant" or last.tool_calls:
        message = "the last message is not an assistant's text, so it cannot be continued"
        raise InvalidRequestError(message, "continue_final_message")
    return asked


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages in the form that templates rely on: arguments are JSON objects, results have names."""
    names = {call.id: call.function.name for message in messages for call in message.tool_calls or []}
    found = []
    for message in messages:
        entry = message.for_template()
        for call in entry.get("tool_calls", ()):
            call["function"]["arguments"] = _object(call["function"]["arguments"])
        if message.role == "tool" and "name" not in entry and message.tool_call_id in names:
            entry["name"] = names[message.tool_call_id]
        found.append(entry)
    return found


def template_variables(body: ChatBody, template: ChatTemplate, defaults: ChatDefaults) -> dict[str, Any]:
    """Return the template's variables that the operator and the client set themselves."""
    given = {name: value for name, value in (body.chat_template_kwargs or {}).items() if value is not None}
    for name in OWN_VARIABLES & given.keys():
        raise InvalidRequestError(
            f"{name} cannot be a template variable: it has a field of its own, or belongs to the server",
            "chat_template_kwargs",
        )
    return {**defaults.template_variables, **body.thinking_variables(template.switches), **given}


def _object(arguments: str) -> str:
    """Return arguments as an object, the only type that templates take. Anything else is put into an object."""
    try:
        check_size(arguments.encode(), MAX_ARGUMENT_VALUES)
        if isinstance(json.loads(arguments), dict):
            return arguments
    except (ValueError, ApiError):
        pass
    return json.dumps({"malformed": arguments} if arguments else {})
