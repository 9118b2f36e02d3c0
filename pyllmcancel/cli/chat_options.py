"""The options of ``pyllmcancel serve`` for conversations, under llama-server's names."""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pyllmcancel.chat.template import CHATML
from pyllmcancel.cli.options import add_option, add_switch, natural_or_none
from pyllmcancel.errors import UsageError
from pyllmcancel.server.config import ChatDefaults, ReasoningFormat

CHAT = ChatDefaults()
SWITCH = ("on", "off", "auto")
# llama.cpp renders these templates by code of its own. "chatml" is missing: the package has a Jinja template for it,
# which can do more.
NAMES = (
    "bailing bailing-think bailing2 chatglm3 chatglm4 command-r deepseek deepseek-ocr deepseek2 deepseek3 exaone-moe"
    " exaone3 exaone4 falcon3 gemma gigachat glmedge gpt-oss granite granite-4.0 granite-4.1 grok-2 hunyuan-dense"
    " hunyuan-moe hunyuan-vl kimi-k2 llama2 llama2-sys llama2-sys-bos llama2-sys-strip llama3 llama4 megrez minicpm"
    " mistral-v1 mistral-v3 mistral-v3-tekken mistral-v7 mistral-v7-tekken monarch openchat orion pangu-embedded phi3"
    " phi4 rwkv-world seed_oss smolvlm solar-open vicuna vicuna-orca yandex zephyr"
)
BUILT_IN = frozenset(NAMES.split())


def add_chat_options(group: argparse._ArgumentGroup) -> None:
    text = "Jinja template to use in place of the model's; or chatml, or the name of one of llama.cpp's, without tools"
    add_option(group, "chat-template", str, None, text, metavar="JINJA")
    add_option(group, "chat-template-file", Path, None, "file of such a Jinja template", metavar="FILE")
    text = "variables of the template, as a JSON object"
    add_option(group, "chat-template-kwargs", str, None, text, metavar="JSON")
    add_switch(
        group, "jinja", CHAT.jinja, "render the template; without Jinja a known template is recognised, without tools"
    )
    text = "where reasoning is put: into the text (none), or into a field of its own (all other values)"
    formats = get_args(ReasoningFormat)
    add_option(group, "reasoning-format", str, CHAT.reasoning_format, text, choices=formats, metavar="FORMAT")
    text = "switch reasoning on or off, for models that can; auto: the template's default"
    add_option(group, "reasoning", str, "auto", text, also=("-rea",), choices=SWITCH)
    add_option(
        group, "reasoning-effort", str, None, "effort of reasoning, for templates that know of it", metavar="LEVEL"
    )
    add_option(group, "reasoning-budget", natural_or_none, None, "limit of reasoning tokens; -1: no limit")
    text = "text to insert where the budget ends the reasoning"
    add_option(group, "reasoning-budget-message", str, "", text, metavar="TEXT")
    text = "show the model the reasoning of all earlier messages, if its template can; without: of the last one"
    add_switch(group, "reasoning-preserve", True, text)
    text = "continue the last message, if it is the assistant's"
    add_switch(group, "prefill-assistant", CHAT.prefill_assistant, text)


def chat_defaults(arguments: argparse.Namespace) -> ChatDefaults:
    variables = {"preserve_reasoning": arguments.reasoning_preserve}
    if arguments.reasoning != "auto":
        variables["enable_thinking"] = arguments.reasoning == "on"
    if arguments.reasoning_effort not in (None, "default"):
        variables["reasoning_effort"] = arguments.reasoning_effort
    return ChatDefaults(
        reasoning_format=arguments.reasoning_format,
        reasoning_budget=arguments.reasoning_budget,
        reasoning_budget_message=arguments.reasoning_budget_message,
        template_variables=variables | _variables(arguments.chat_template_kwargs),
        prefill_assistant=arguments.prefill_assistant,
        jinja=arguments.jinja and arguments.chat_template not in BUILT_IN,
    )


def chat_template(arguments: argparse.Namespace) -> str | None:
    """The template as Jinja, or a name of `BUILT_IN`; None: the model's own. UsageError if the option is neither."""
    text: str | None = arguments.chat_template
    if arguments.chat_template_file is not None:
        if text is not None:
            raise UsageError("--chat-template and --chat-template-file exclude each other")
        return str(arguments.chat_template_file.read_text("utf-8"))
    if text is None or "{" in text or text in BUILT_IN:
        return text
    if text == "chatml":
        return CHATML
    nearest = get_close_matches(text, ["chatml", *BUILT_IN], 1)
    hint = f"; is it {nearest[0]}?" if nearest else ""
    raise UsageError(f"--chat-template must be Jinja, or the name of one of llama.cpp's templates, not {text!r}{hint}")


def _variables(text: str | None) -> dict[str, Any]:
    try:
        found = {} if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"--chat-template-kwargs is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("--chat-template-kwargs must be a JSON object")
    return found
