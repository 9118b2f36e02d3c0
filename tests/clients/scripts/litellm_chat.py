"""LiteLLM as a library: a chat with a tool, and a stream that is closed."""

import json

import common
from recipe import complete

SAY = common.SAY | {"parameters": common.TEXT}

messages = [{"role": "user", "content": common.call_prompt}]
tools = [{"type": "function", "function": SAY}]
message = complete(messages=messages, tools=tools).choices[0].message
(call,) = message.tool_calls
said = json.loads(call.function.arguments)["text"]
messages += [message, {"role": "tool", "tool_call_id": call.id, "content": said}]
answer = complete(messages=messages, tools=tools)
assert answer.choices[0].finish_reason == "stop", answer

stream = complete(messages=[{"role": "user", "content": common.long_prompt}], stream=True)
for _ in range(5):
    next(stream)
common.left()
stream.completion_stream.close()
