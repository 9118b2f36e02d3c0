"""Errors: their facts, and their shape in each API."""
