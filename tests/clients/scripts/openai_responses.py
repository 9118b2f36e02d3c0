"""The openai package: responses with a tool, and a stream that is closed."""

import json
import sys
import time

from recipe import client

call_prompt, long_prompt = sys.argv[1:]
MODEL = "stdlib-coder"
SAY = {
    "type": "function",
    "name": "say",
    "description": "Says a text.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "strict": False,
}

items = [{"role": "user", "content": call_prompt}]
(call,) = client.responses.create(model=MODEL, input=items, tools=[SAY]).output
said = json.loads(call.arguments)["text"]
items += [call, {"type": "function_call_output", "call_id": call.call_id, "output": said}]
answer = client.responses.create(model=MODEL, input=items, tools=[SAY])
assert answer.status == "completed", answer
assert answer.output_text, answer

n_deltas = 0
with client.responses.create(model=MODEL, input=long_prompt, stream=True) as stream:
    for event in stream:
        n_deltas += event.type == "response.output_text.delta"
        if n_deltas == 5:
            break
    sys.stdout.write(f"left {time.time()}\n")
assert n_deltas == 5
