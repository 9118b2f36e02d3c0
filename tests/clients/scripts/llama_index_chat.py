"""LlamaIndex: a chat with a tool, and a stream that is closed."""

import common
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from recipe import model


def say(text: str) -> str:
    """Say a text."""
    return text


tool = FunctionTool.from_defaults(say)
question = ChatMessage(role="user", content=common.call_prompt)
message = model.chat_with_tools([tool], chat_history=[question])
(call,) = model.get_tool_calls_from_response(message)
said = tool(**call.tool_kwargs)
result = ChatMessage(role="tool", content=str(said.content), additional_kwargs={"tool_call_id": call.tool_id})
answer = model.chat_with_tools([tool], chat_history=[question, message.message, result])
assert answer.message.content, answer

stream = model.stream_chat([ChatMessage(role="user", content=common.long_prompt)])
for _ in range(5):
    next(stream)
common.left()
stream.close()
