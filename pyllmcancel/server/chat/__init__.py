"""Chats in any dialect: messages, the prompt that they become, and tools with their calls."""
