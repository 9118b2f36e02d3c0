"""Errors: their facts, and the shape of each API's own."""
