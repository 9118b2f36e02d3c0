"""llama-server's own endpoints, which editors use."""
