"""The engine: its thread, the loop that takes steps, loading, and the path from a request's tokens to its answer."""
