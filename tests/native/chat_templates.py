"""llama.cpp's chat templates, rendered; and what a parser makes of an answer, put together."""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pyllmcancel._native import ChatParser, ChatTemplate
from pyllmcancel.chat.jinja_engine import Engine

TEMPLATES = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp" / "models" / "templates"
ALL = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def function(name: str, required: list[str], **properties: str) -> dict[str, Any]:
    """A tool whose parameters are of these types."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": required,
    }
    return {"type": "function", "function": {"name": name, "description": f"the {name}", "parameters": parameters}}


TOOLS = [
    function("get_weather", ["city"], city="string", days="integer"),
    function("add", ["a", "b"], a="number", b="number"),
]
QUESTION = [{"role": "user", "content": "What is the weather in Köln?"}]
CALL_ID = "call00001"  # Mistral wants nine characters
PAST_CALL = [
    *QUESTION,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": CALL_ID, "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": CALL_ID, "name": "get_weather", "content": '{"sky": "cloudy"}'},
]


@cache
def template(name: str) -> ChatTemplate:
    return compiled((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))


def compiled(source: str, **options: bool) -> ChatTemplate:
    return ChatTemplate(source, Engine(), "<s>", "</s>", **options)


def apply(name: str, messages: list[dict[str, Any]] = QUESTION, **inputs: Any) -> bytes:
    inputs = {"reasoning_format": "auto", "parallel_tool_calls": True} | inputs
    return template(name).apply(json.dumps({"messages": messages} | inputs).encode())


@dataclass(slots=True)
class Message:
    """An answer's parts, put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def add(self, parts: list[Any]) -> None:
        for part in parts:
            match part:
                case ("content", text):
                    self.content += text
                case ("reasoning", text):
                    self.reasoning += text
                case ("call", index, name, call_id):
                    assert index == len(self.calls)
                    self.calls.append((name, ""))
                    self.ids.append(call_id)
                case ("arguments", index, text):
                    name, arguments = self.calls[index]
                    self.calls[index] = (name, arguments + text)

    def objects(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def parse(form: bytes, *pieces: str) -> Message:
    parser = ChatParser(form)
    message = Message()
    for piece in pieces:
        message.add(parser.feed(piece))
    message.add(parser.feed("", final=True))
    assert parser.n_calls == len(message.calls)
    return message


def parse_everywhere(form: bytes, answer: str) -> Message:
    """Cut into characters, at each place, and not at all: always the same."""
    whole = parse(form, answer)
    assert parse(form, *answer) == whole
    for cut in range(len(answer)):
        assert parse(form, answer[:cut], answer[cut:]) == whole, f"cut before {answer[cut:]!r}"
    return whole
