"""The prompts, the tool's parameters and the report of a client's script, beside which this file is copied."""

import sys
import time

call_prompt, long_prompt = sys.argv[1:]
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SAY = {"name": "say", "description": "Says a text."}


def left() -> None:
    sys.stdout.write(f"left {time.time()}\n")
