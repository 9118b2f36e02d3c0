"""Measurements of a GPU: graphs and calls of a step, cancels, and speed beside llama-server."""
