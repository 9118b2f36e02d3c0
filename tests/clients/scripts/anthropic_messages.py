"""The anthropic package: messages with a tool, and a stream that is closed."""

import common
from recipe import client

SAY = common.SAY | {"input_schema": common.TEXT}
COMMON = {"model": "stdlib-coder", "max_tokens": 4096}

messages = [{"role": "user", "content": common.call_prompt}]
message = client.messages.create(messages=messages, tools=[SAY], **COMMON)
assert message.stop_reason == "tool_use", message
(call,) = [block for block in message.content if block.type == "tool_use"]
result = {"type": "tool_result", "tool_use_id": call.id, "content": call.input["text"]}
messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
answer = client.messages.create(messages=messages, tools=[SAY], **COMMON)
assert answer.stop_reason == "end_turn", answer

question = {"role": "user", "content": common.long_prompt}
with client.messages.stream(messages=[question], model="stdlib-coder", max_tokens=30_000) as stream:
    for n, _ in enumerate(stream.text_stream):
        if n == 5:
            break
    common.left()
