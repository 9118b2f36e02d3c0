"""Examples of the OpenAPI page, by path. A test sends them all."""

from __future__ import annotations

from typing import Any

QUESTION = [{"role": "user", "content": "Write a function that adds two numbers."}]
VERDICT = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "grade": {"enum": ["good", "bad"]}},
    "required": ["sure", "grade"],
    "additionalProperties": False,
}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "plain": {
            "summary": "Complete a text",
            "value": {"prompt": "def hello_world():\n", "max_tokens": 16},
        },
        "stream": {
            "summary": "A stream, with the usage at the end",
            "value": {
                "prompt": "def hello_world():\n",
                "max_tokens": 16,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        },
        "greedy": {
            "summary": "The likeliest tokens, with their logprobs",
            "value": {"prompt": "import ", "max_tokens": 4, "temperature": 0, "logprobs": 2},
        },
        "editor": {
            "summary": "An editor's request at every keystroke: the newest of its key wins",
            "value": {
                "prompt": "for i in ",
                "max_tokens": 16,
                "stop": ["\n"],
                "supersede": "editor-1",
                "timeout": 10,
            },
        },
        "gap": {
            "summary": "Fill the gap before a suffix",
            "value": {"prompt": "def add(a, b):\n    ", "suffix": "\n    return total\n", "max_tokens": 16},
        },
        "scored": {
            "summary": "The likelihood of a text: its tokens' logprobs, without generating",
            "value": {"prompt": "import os\n", "max_tokens": 0, "echo": True, "logprobs": 1},
        },
        "best": {
            "summary": "The likeliest of three answers",
            "value": {"prompt": "def hello_world():\n", "best_of": 3, "max_tokens": 8},
        },
        "grammar": {
            "summary": "An answer that is one of two words",
            "value": {"prompt": "Is it? ", "grammar": 'root ::= "yes" | "no"'},
        },
        "several": {
            "summary": "Two prompts with two choices each",
            "value": {"prompt": ["a = ", "b = "], "n": 2, "max_tokens": 4, "seed": 1},
        },
        "tokens": {
            "summary": "A prompt that is tokenized already",
            "value": {"prompt": [72, 101, 108, 108, 111], "max_tokens": 4},
        },
    },
    "/v1/chat/completions": {
        "plain": {
            "summary": "Answer in a conversation",
            "value": {"messages": QUESTION, "max_completion_tokens": 16},
        },
        "stream": {
            "summary": "A stream",
            "value": {"messages": QUESTION, "max_completion_tokens": 16, "stream": True},
        },
        "logprobs": {
            "summary": "With logprobs",
            "value": {"messages": QUESTION, "max_completion_tokens": 4, "logprobs": True, "top_logprobs": 2},
        },
        "schema": {
            "summary": "JSON that obeys a schema",
            "value": {
                "messages": QUESTION,
                "max_completion_tokens": 64,
                "response_format": {"type": "json_schema", "json_schema": {"name": "verdict", "schema": VERDICT}},
            },
        },
        "tools": {
            "summary": "A call of a tool",
            "value": {
                "messages": QUESTION,
                "max_completion_tokens": 64,
                "tools": [{"type": "function", "function": {"name": "judge", "parameters": VERDICT}}],
                "tool_choice": "required",
            },
        },
    },
    "/v1/responses": {
        "plain": {
            "summary": "Answer to a text",
            "value": {"input": "Write a function that adds two numbers.", "max_output_tokens": 16},
        },
        "stream": {
            "summary": "A stream of events",
            "value": {
                "instructions": "Be brief.",
                "input": [{"role": "user", "content": "Write a function that adds two numbers."}],
                "max_output_tokens": 16,
                "stream": True,
            },
        },
        "tools": {
            "summary": "A call of a tool",
            "value": {
                "input": "Write a function that adds two numbers.",
                "max_output_tokens": 64,
                "tools": [{"type": "function", "name": "judge", "parameters": VERDICT}],
                "tool_choice": "required",
            },
        },
    },
    "/v1/responses/input_tokens": {
        "plain": {"summary": "The length of the prompt", "value": {"input": "Write a function that adds two numbers."}},
    },
    "/v1/messages": {
        "plain": {
            "summary": "Answer in a conversation",
            "value": {"messages": QUESTION, "max_tokens": 16, "system": "You are brief."},
        },
        "stream": {
            "summary": "A stream",
            "value": {"messages": QUESTION, "max_tokens": 16, "stream": True},
        },
        "schema": {
            "summary": "JSON that obeys a schema",
            "value": {
                "messages": QUESTION,
                "max_tokens": 64,
                "output_config": {"format": {"type": "json_schema", "schema": VERDICT}},
            },
        },
        "tools": {
            "summary": "A call of a tool",
            "value": {
                "messages": QUESTION,
                "max_tokens": 64,
                "tools": [{"name": "judge", "input_schema": VERDICT}],
                "tool_choice": {"type": "any"},
            },
        },
    },
    "/v1/messages/count_tokens": {
        "plain": {"summary": "The length of a conversation", "value": {"messages": QUESTION}},
    },
    "/completion": {
        "plain": {
            "summary": "Complete a text",
            "value": {"prompt": "def hello_world():\n", "n_predict": 16},
        },
        "mixed": {
            "summary": "Two prompts, one of tokens and a text; only the answers' texts",
            "value": {"prompt": [[72, 105, " there"], "Hello"], "n_predict": 4, "response_fields": ["content"]},
        },
        "probabilities": {
            "summary": "The likeliest tokens, with their logprobs",
            "value": {"prompt": "import ", "n_predict": 4, "temperature": 0, "n_probs": 2, "return_tokens": True},
        },
    },
    "/infill": {
        "gap": {
            "summary": "An editor's request at every keystroke: the newest of its key wins",
            "value": {
                "input_prefix": "def add(a, b):\n",
                "prompt": "    ret",
                "input_suffix": "\n\nprint(add(1, 2))\n",
                "input_extra": [{"filename": "test_add.py", "text": "assert add(1, 2) == 3\n"}],
                "n_predict": 16,
                "n_indent": 4,
                "samplers": ["top_k", "top_p", "infill"],
                "t_max_prompt_ms": 10_000,
                "t_max_predict_ms": 1_000,
                "supersede": "editor-1",
            },
        },
    },
    "/tokenize": {
        "pieces": {"summary": "Tokens, and their texts", "value": {"content": "def f():", "with_pieces": True}},
    },
    "/detokenize": {
        "plain": {"summary": "Tokens back to text", "value": {"tokens": [72, 101, 108, 108, 111]}},
    },
    "/apply-template": {
        "plain": {"summary": "The prompt that is made of a conversation", "value": {"messages": QUESTION}},
    },
}
