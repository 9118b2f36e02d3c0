"""The anthropic package: messages with a tool, and a stream that is closed."""

import sys
import time

from recipe import client

call_prompt, long_prompt = sys.argv[1:]
SAY = {
    "name": "say",
    "description": "Says a text.",
    "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
COMMON = {"model": "stdlib-coder", "max_tokens": 4096}

messages = [{"role": "user", "content": call_prompt}]
message = client.messages.create(messages=messages, tools=[SAY], **COMMON)
assert message.stop_reason == "tool_use", message
(call,) = [block for block in message.content if block.type == "tool_use"]
result = {"type": "tool_result", "tool_use_id": call.id, "content": call.input["text"]}
messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
answer = client.messages.create(messages=messages, tools=[SAY], **COMMON)
assert answer.stop_reason == "end_turn", answer

question = {"role": "user", "content": long_prompt}
with client.messages.stream(messages=[question], model="stdlib-coder", max_tokens=30_000) as stream:
    for n, _ in enumerate(stream.text_stream):
        if n == 5:
            break
    sys.stdout.write(f"left {time.time()}\n")
