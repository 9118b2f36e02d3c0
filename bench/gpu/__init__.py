"""The costs and gains of stopping a step between nodes, on a device without ggml's abort callback."""
