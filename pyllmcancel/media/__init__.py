"""Pictures and sounds in prompts: their tokens, their encoding, and the cache of what was encoded."""
