"""Errors as answers, and their shape in each API."""
