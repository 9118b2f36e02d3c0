"""Answers as models of each family write them, and what they mean."""
# ruff: noqa: RUF001

import json
from dataclasses import dataclass, field
from typing import Any

WEATHER = ("get_weather", {"city": "Köln"})
DAYS = ("get_weather", {"city": "Köln", "days": 3})
SUM = ("add", {"a": 1.5, "b": -2})


@dataclass(frozen=True, slots=True)
class Answer:
    """The text after the prompt of a template, and its parts."""

    template: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    ids: list[str] | None = None
    inputs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.template}: {self.text[:40]!r}"


def call_json(call: tuple[str, Any], arguments: str = "arguments") -> str:
    """A call as most write it."""
    return json.dumps({"name": call[0], arguments: call[1]}, ensure_ascii=False)


def tagged(call: tuple[str, Any]) -> str:
    return f"<tool_call>\n{call_json(call)}\n</tool_call>"


HARMONY = "openai-gpt-oss-120b"
QWEN = "Qwen-Qwen3-0.6B"
CODER = "Qwen3-Coder"
QWEN_3_5 = "Qwen3.5-4B"
GLM = "GLM-4.6"
KIMI = "Kimi-K2-Instruct"
DEEPSEEK = "deepseek-ai-DeepSeek-V3.1"
R1 = "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"
MISTRAL = "Mistral-Small-3.2-24B-Instruct-2506"
NEMO = "mistralai-Mistral-Nemo-Instruct-2407"
LLAMA = "meta-llama-Llama-3.1-8B-Instruct"
HERMES = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"
COMMAND_R = "CohereForAI-c4ai-command-r7b-12-2024-tool_use"
GEMMA_2 = "google-gemma-2-2b-it"
GEMMA_4 = "google-gemma-4-31B-it"
MINIMAX = "MiniMax-M3"

XML_WEATHER = "<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n"
XML_SUM = "<function=add>\n<parameter=a>\n1.5\n</parameter>\n<parameter=b>\n-2\n</parameter>\n</function>\n"
GLM_WEATHER = "get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n"
GLM_SUM = "add\n<arg_key>a</arg_key>\n<arg_value>1.5</arg_value>\n<arg_key>b</arg_key>\n<arg_value>-2</arg_value>\n"
KIMI_WEATHER = '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Köln"}<|tool_call_end|>'
KIMI_SUM = '<|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{"a": 1.5, "b": -2}<|tool_call_end|>'
DEEPSEEK_WEATHER = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Köln"}<｜tool▁call▁end｜>'
DEEPSEEK_SUM = '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1.5, "b": -2}<｜tool▁call▁end｜>'
R1_WEATHER = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Köln"}\n```<｜tool▁call▁end｜>'
CALL_CHANNEL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>They ask: 1 < 2?<|end|><|start|>assistant"
PLAIN = "Köln: 21 °C, if 1 < 2 & [x] {y} `z` <b>.\n\n"

ANSWERS = [
    Answer(HARMONY, "<|channel|>final<|message|>" + PLAIN, content=PLAIN),
    Answer(HARMONY, ANALYSIS + "<|channel|>final<|message|>Hi.", "Hi.", "They ask: 1 < 2?"),
    Answer(HARMONY, CALL_CHANNEL + '{"city": "Köln"}', calls=[WEATHER]),
    Answer(HARMONY, ANALYSIS + CALL_CHANNEL + '{"city": "Köln"}', "", "They ask: 1 < 2?", [WEATHER]),
    Answer(
        HARMONY,
        ANALYSIS + "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant to=functions.add"
        '<|channel|>commentary json<|message|>{"a": 1.5, "b": -2}',
        "One moment.",
        "They ask: 1 < 2?",
        [SUM],
    ),
    Answer(QWEN, PLAIN, content=PLAIN),
    Answer(QWEN, "<think>\nHm, <b>?\n</think>\n\n" + PLAIN, PLAIN, "Hm, <b>?\n"),
    Answer(QWEN, "<think>\nHm.\n</think>\n\n" + tagged(DAYS), "", "Hm.\n", [DAYS]),
    Answer(QWEN, tagged(WEATHER) + "\n" + tagged(SUM), calls=[WEATHER, SUM]),
    Answer(QWEN, "Let me see.\n" + tagged(WEATHER), "Let me see.\n", calls=[WEATHER]),
    Answer(CODER, PLAIN, content=PLAIN),
    Answer(CODER, f"<tool_call>\n{XML_WEATHER}</tool_call>", calls=[WEATHER]),
    Answer(CODER, f"{XML_WEATHER}</tool_call>", calls=[WEATHER]),
    Answer(CODER, f"<tool_call>\n{XML_WEATHER}</tool_call>\n<tool_call>\n{XML_SUM}</tool_call>", calls=[WEATHER, SUM]),
    Answer(QWEN_3_5, "Hm.\n</think>\n\n" + PLAIN, PLAIN, "Hm.\n"),
    Answer(QWEN_3_5, f"Hm.\n</think>\n\n<tool_call>\n{XML_SUM}</tool_call>", "", "Hm.\n", [SUM]),
    Answer(
        QWEN_3_5,
        f"</think>\n\n<tool_call>\n{XML_WEATHER}</tool_call>\n<tool_call>\n{XML_SUM}</tool_call>",
        calls=[WEATHER, SUM],
    ),
    Answer(GLM, PLAIN, content=PLAIN),
    Answer(GLM, "\n<think>Hm.</think>\n" + PLAIN, PLAIN, "Hm."),
    Answer(GLM, f"\n<think>Hm.</think>\n<tool_call>{GLM_WEATHER}</tool_call>", "", "Hm.", [WEATHER]),
    Answer(GLM, f"<tool_call>{GLM_WEATHER}</tool_call>\n<tool_call>{GLM_SUM}</tool_call>", calls=[WEATHER, SUM]),
    Answer(KIMI, PLAIN, content=PLAIN),
    Answer(KIMI, "<think>Hm.</think>" + PLAIN, PLAIN, "Hm."),
    Answer(
        KIMI,
        f"Well.<|tool_calls_section_begin|>{KIMI_WEATHER}<|tool_calls_section_end|>",
        "Well.",
        calls=[WEATHER],
        ids=["functions.get_weather:0"],
    ),
    Answer(
        KIMI,
        f"<|tool_calls_section_begin|>{KIMI_WEATHER}{KIMI_SUM}<|tool_calls_section_end|>",
        calls=[WEATHER, SUM],
        ids=["functions.get_weather:0", "functions.add:1"],
    ),
    Answer(DEEPSEEK, "Hm.</think>" + PLAIN, PLAIN, "Hm."),
    Answer(DEEPSEEK, "</think>" + PLAIN, PLAIN),
    Answer(DEEPSEEK, f"Hm.</think><｜tool▁calls▁begin｜>{DEEPSEEK_WEATHER}<｜tool▁calls▁end｜>", "", "Hm.", [WEATHER]),
    Answer(
        DEEPSEEK,
        f"</think><｜tool▁calls▁begin｜>{DEEPSEEK_WEATHER}{DEEPSEEK_SUM}<｜tool▁calls▁end｜>",
        calls=[WEATHER, SUM],
    ),
    Answer(R1, "Hm.\n</think>\n\n" + PLAIN, "\n\n" + PLAIN, "\nHm.\n"),
    Answer(R1, f"Hm.\n</think><｜tool▁calls▁begin｜>{R1_WEATHER}<｜tool▁calls▁end｜>", "", "\nHm.\n", [WEATHER]),
    Answer(MISTRAL, PLAIN, content=PLAIN),
    Answer(MISTRAL, '[TOOL_CALLS]get_weather[ARGS]{"city": "Köln", "days": 3}', calls=[DAYS]),
    Answer(
        MISTRAL, '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Köln"}', calls=[WEATHER], ids=["abcdefghi"]
    ),
    Answer(
        MISTRAL,
        'So:[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Köln"}[TOOL_CALLS]add[ARGS]{"a": 1.5, "b": -2}',
        "So:",
        calls=[WEATHER, SUM],
        ids=["abcdefghi", ""],
    ),
    Answer(NEMO, PLAIN, content=PLAIN),
    Answer(
        NEMO,
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Köln"}, "id": "abcdefghi"}]',
        calls=[WEATHER],
        ids=["abcdefghi"],
    ),
    Answer(
        NEMO,
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Köln"}, "id": "abcdefghi"}, '
        '{"name": "add", "arguments": {"a": 1.5, "b": -2}, "id": "123456789"}]',
        calls=[WEATHER, SUM],
        ids=["abcdefghi", "123456789"],
    ),
    Answer(LLAMA, "Köln: 21 °C.", content="Köln: 21 °C."),
    Answer(LLAMA, call_json(WEATHER, "parameters"), calls=[WEATHER]),
    Answer(LLAMA, '{"type": "function", ' + call_json(DAYS, "parameters")[1:], calls=[DAYS]),
    Answer(HERMES, PLAIN, content=PLAIN),
    Answer(HERMES, tagged(DAYS), calls=[DAYS]),
    Answer(HERMES, tagged(WEATHER) + "\n" + tagged(SUM), calls=[WEATHER, SUM]),
    Answer(COMMAND_R, f"<|START_RESPONSE|>{PLAIN}<|END_RESPONSE|>", content=PLAIN),
    Answer(COMMAND_R, f"<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>{PLAIN}<|END_RESPONSE|>", PLAIN, "Hm."),
    Answer(
        COMMAND_R,
        '<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        '"parameters": {"city": "Köln"}}\n]<|END_ACTION|>',
        "",
        "Hm.",
        [WEATHER],
        ["0"],
    ),
    Answer(
        COMMAND_R,
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Köln"}},\n'
        '    {"tool_call_id": "1", "tool_name": "add", "parameters": {"a": 1.5, "b": -2}}\n]<|END_ACTION|>',
        calls=[WEATHER, SUM],
        ids=["0", "1"],
    ),
    Answer(GEMMA_2, PLAIN + tagged(WEATHER), content=PLAIN + tagged(WEATHER)),
    Answer(GEMMA_4, PLAIN, content=PLAIN),
    Answer(GEMMA_4, '<|tool_call>call:get_weather{city:<|"|>Köln<|"|>,days:3}<tool_call|>', calls=[DAYS]),
    Answer(MINIMAX, "</mm:think>" + PLAIN, content=PLAIN),
    Answer(
        MINIMAX,
        "</mm:think>]<]minimax[>[<tool_call>\n"
        ']<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Köln]<]minimax[>[</city>]<]minimax[>[</invoke>\n'
        "]<]minimax[>[</tool_call>",
        calls=[WEATHER],
    ),
]
