"""llama-server's own endpoints, which editors speak: bodies, what they ask of the engine, the wording of answers."""
