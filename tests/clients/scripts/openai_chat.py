"""The openai package: a chat with a tool, and a stream that is closed."""

import json

import common
from recipe import client

SAY = common.SAY | {"parameters": common.TEXT}
MODEL = "stdlib-coder"

messages = [{"role": "user", "content": common.call_prompt}]
tools = [{"type": "function", "function": SAY}]
message = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
(call,) = message.tool_calls
said = json.loads(call.function.arguments)["text"]
messages += [message, {"role": "tool", "tool_call_id": call.id, "content": said}]
answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
assert answer.choices[0].finish_reason == "stop", answer

question = {"role": "user", "content": common.long_prompt}
with client.chat.completions.create(model=MODEL, messages=[question], stream=True) as stream:
    for n, chunk in enumerate(stream):
        assert chunk.choices[0].finish_reason is None, chunk
        if n == 5:
            break
    common.left()
