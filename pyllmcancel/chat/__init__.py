"""Chats: templates, what they need, and the grammar of their answers."""
