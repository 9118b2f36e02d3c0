"""The engine: its thread, the loop that takes steps, loading, and what becomes of a request's tokens."""
