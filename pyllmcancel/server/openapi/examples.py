"""Examples of the OpenAPI page, by path. A test sends them all."""

from __future__ import annotations

from typing import Any


def of(summary: str, **body: Any) -> dict[str, Any]:
    return {"summary": summary, "value": body}


HELLO = "def hello_world():\n"
ADD = "Write a function that adds two numbers."
QUESTION = [{"role": "user", "content": ADD}]
VERDICT = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "grade": {"enum": ["good", "bad"]}},
    "required": ["sure", "grade"],
    "additionalProperties": False,
}
CONVERSATION = "Answer in a conversation"
KEYSTROKE = "An editor's request at every keystroke: the newest of its key wins"
FORM = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": VERDICT}}
JUDGE = {"type": "function", "function": {"name": "judge", "parameters": VERDICT}}
FLAT_JUDGE = {"type": "function", "name": "judge", "parameters": VERDICT}
INPUT_JUDGE = {"name": "judge", "input_schema": VERDICT}
OUTPUT = {"format": {"type": "json_schema", "schema": VERDICT}}
EDITED = {
    "input_prefix": "def add(a, b):\n",
    "prompt": "    ret",
    "input_suffix": "\n\nprint(add(1, 2))\n",
    "input_extra": [{"filename": "test_add.py", "text": "assert add(1, 2) == 3\n"}],
    "n_predict": 16,
    "n_indent": 4,
    "samplers": ["top_k", "top_p", "infill"],
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "plain": of("Complete a text", prompt=HELLO, max_tokens=16),
        "stream": of(
            "A stream, with the usage at the end",
            prompt=HELLO,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        ),
        "greedy": of("The likeliest tokens, with logprobs", prompt="import ", max_tokens=4, temperature=0, logprobs=2),
        "editor": of(KEYSTROKE, prompt="for i in ", max_tokens=16, stop=["\n"], supersede="editor-1", timeout=10),
        "gap": of("Fill a gap", prompt="def add(a, b):\n    ", suffix="\n    return total\n", max_tokens=16),
        "scored": of("A text's likelihood, token by token", prompt="import os\n", max_tokens=0, echo=True, logprobs=1),
        "best": of("The likeliest of three answers", prompt=HELLO, best_of=3, max_tokens=8),
        "grammar": of("An answer that is one of two words", prompt="Is it? ", grammar='root ::= "yes" | "no"'),
        "several": of("Two prompts with two choices each", prompt=["a = ", "b = "], n=2, max_tokens=4, seed=1),
        "tokens": of("A prompt that is tokenized already", prompt=[72, 101, 108, 108, 111], max_tokens=4),
    },
    "/v1/chat/completions": {
        "plain": of(CONVERSATION, messages=QUESTION, max_completion_tokens=16),
        "stream": of("A stream", messages=QUESTION, max_completion_tokens=16, stream=True),
        "logprobs": of("With logprobs", messages=QUESTION, max_completion_tokens=4, logprobs=True, top_logprobs=2),
        "schema": of("JSON that obeys a schema", messages=QUESTION, max_completion_tokens=64, response_format=FORM),
        "tools": of("A tool call", messages=QUESTION, max_completion_tokens=64, tools=[JUDGE], tool_choice="required"),
    },
    "/v1/responses": {
        "plain": of("Answer to a text", input=ADD, max_output_tokens=16),
        "stream": of("A stream of events", instructions="Be brief.", input=QUESTION, max_output_tokens=16, stream=True),
        "tools": of("A tool call", input=ADD, max_output_tokens=64, tools=[FLAT_JUDGE], tool_choice="required"),
    },
    "/v1/responses/input_tokens": {"plain": of("The length of the prompt", input=ADD)},
    "/v1/messages": {
        "plain": of(CONVERSATION, messages=QUESTION, max_tokens=16, system="You are brief."),
        "stream": of("A stream", messages=QUESTION, max_tokens=16, stream=True),
        "schema": of("JSON that obeys a schema", messages=QUESTION, max_tokens=64, output_config=OUTPUT),
        "tools": of("A tool call", messages=QUESTION, max_tokens=64, tools=[INPUT_JUDGE], tool_choice={"type": "any"}),
    },
    "/v1/messages/count_tokens": {"plain": of("The length of a conversation", messages=QUESTION)},
    "/completion": {
        "plain": of("Complete a text", prompt=HELLO, n_predict=16),
        "mixed": of(
            "Two prompts; only the answers' texts",
            prompt=[[72, 105, " there"], "Hello"],
            n_predict=4,
            response_fields=["content"],
        ),
        "probabilities": of(
            "The likeliest tokens, with logprobs",
            prompt="import ",
            n_predict=4,
            temperature=0,
            n_probs=2,
            return_tokens=True,
        ),
    },
    "/infill": {"gap": of(KEYSTROKE, **EDITED, t_max_prompt_ms=10_000, t_max_predict_ms=1_000, supersede="editor-1")},
    "/tokenize": {"pieces": of("Tokens, and their texts", content="def f():", with_pieces=True)},
    "/detokenize": {"plain": of("Tokens back to text", tokens=[72, 101, 108, 108, 111])},
    "/apply-template": {"plain": of("The prompt that is made of a conversation", messages=QUESTION)},
}
