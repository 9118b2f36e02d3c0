"""OpenAI's completions and chat: bodies, what they ask of the engine, and the wording of answers."""
