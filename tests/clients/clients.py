"""The clients: where each comes from, its recipe, and how it is used."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.clients.agents import claude_code, codex, llm, opencode
from tests.clients.libraries import library
from tests.clients.packages import Environment
from tests.clients.session import Session

AI = ("ai@6.0.326", "zod@4.6.7")


@dataclass(frozen=True, slots=True)
class Client:
    """`use` has it call a tool and leave a long answer, and says when it left."""

    name: str
    environment: Environment
    use: Callable[[Session], float]


def _python(name: str, recipe: str, script: str, *pins: str) -> Client:
    return Client(name, Environment("pip", pins), library(recipe, script))


def _node(name: str, recipe: str, script: str, *pins: str) -> Client:
    return Client(name, Environment("npm", pins), library(recipe, script))


ALL = (
    _python("openai", "openai", "openai_chat.py", "openai==3.54.0"),
    _python("openai-responses", "openai", "openai_responses.py", "openai==3.54.0"),
    _python("anthropic", "anthropic", "anthropic_messages.py", "anthropic==2.12.0"),
    _python("langchain", "LangChain", "langchain_chat.py", "langchain-openai==1.7.3"),
    _python("llama-index", "LlamaIndex", "llama_index_chat.py", "llama-index-llms-openai-like==0.8.1"),
    _python("litellm", "LiteLLM", "litellm_chat.py", "litellm==1.106.2", "mcp==2.3.0"),
    _node("openai-node", "openai for Node", "openai_chat.mjs", "openai@6.49.0"),
    _node("openai-node-responses", "openai for Node", "openai_responses.mjs", "openai@6.49.0"),
    _node("anthropic-node", "anthropic for Node", "anthropic_messages.mjs", "@anthropic-ai/sdk@1.12.0"),
    _node("ai-sdk-compatible", "AI SDK: openai-compatible", "ai_sdk.mjs", "@ai-sdk/openai-compatible@2.0.91", *AI),
    _node("ai-sdk-openai", "AI SDK: openai", "ai_sdk.mjs", "@ai-sdk/openai@3.0.141", *AI),
    _node("ai-sdk-anthropic", "AI SDK: anthropic", "ai_sdk.mjs", "@ai-sdk/anthropic@3.0.139", *AI),
    Client("llm", Environment("pip", ("llm==0.32.1",)), llm),
    Client("codex", Environment("npm", ("@openai/codex@0.169.0",)), codex),
    Client("opencode", Environment("npm", ("opencode-ai@1.18.33",)), opencode),
    Client("claude-code", Environment("npm", ("@anthropic-ai/claude-code@2.1.197",)), claude_code),
)
BY_NAME = {client.name: client for client in ALL}
