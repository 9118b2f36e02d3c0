"""LangChain: a chat with a tool, and a stream that is closed."""

import common
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from recipe import model


@tool
def say(text: str) -> str:
    """Say a text."""
    return text


with_tools = model.bind_tools([say])
question = HumanMessage(common.call_prompt)
message = with_tools.invoke([question])
(call,) = message.tool_calls
answer = with_tools.invoke([question, message, say.invoke(call)])
assert answer.content, answer

stream = model.stream(common.long_prompt)
for _ in range(5):
    next(stream)
common.left()
stream.close()
