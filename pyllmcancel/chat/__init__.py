"""Chats: templates and their needs, and the grammar of answers."""
