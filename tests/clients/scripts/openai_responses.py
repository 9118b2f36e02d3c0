"""The openai package: responses with a tool, and a stream that is closed."""

import json

import common
from recipe import client

MODEL = "stdlib-coder"
SAY = {"type": "function"} | common.SAY | {"parameters": common.TEXT, "strict": False}

items = [{"role": "user", "content": common.call_prompt}]
(call,) = client.responses.create(model=MODEL, input=items, tools=[SAY]).output
said = json.loads(call.arguments)["text"]
items += [call, {"type": "function_call_output", "call_id": call.call_id, "output": said}]
answer = client.responses.create(model=MODEL, input=items, tools=[SAY])
assert answer.status == "completed", answer
assert answer.output_text, answer

n_deltas = 0
with client.responses.create(model=MODEL, input=common.long_prompt, stream=True) as stream:
    for event in stream:
        n_deltas += event.type == "response.output_text.delta"
        if n_deltas == 5:
            break
    common.left()
assert n_deltas == 5
