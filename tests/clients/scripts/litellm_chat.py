"""LiteLLM as a library: a chat with a tool, and a stream that is closed."""

import json
import sys
import time

from recipe import complete

call_prompt, long_prompt = sys.argv[1:]
SAY = {
    "name": "say",
    "description": "Says a text.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}

messages = [{"role": "user", "content": call_prompt}]
tools = [{"type": "function", "function": SAY}]
message = complete(messages=messages, tools=tools).choices[0].message
(call,) = message.tool_calls
said = json.loads(call.function.arguments)["text"]
messages += [message, {"role": "tool", "tool_call_id": call.id, "content": said}]
answer = complete(messages=messages, tools=tools)
assert answer.choices[0].finish_reason == "stop", answer

stream = complete(messages=[{"role": "user", "content": long_prompt}], stream=True)
for _ in range(5):
    next(stream)
sys.stdout.write(f"left {time.time()}\n")
stream.completion_stream.close()
