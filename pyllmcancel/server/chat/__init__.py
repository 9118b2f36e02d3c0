"""Chats in any dialect: messages, the prompt that is made of them, and tools with their calls."""
