"""Models that pool: embeddings in the forms of OpenAI and llama-server, and rankings."""
