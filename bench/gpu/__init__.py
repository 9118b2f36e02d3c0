"""What stopping a step between nodes costs and gains on a device without ggml's abort callback."""
