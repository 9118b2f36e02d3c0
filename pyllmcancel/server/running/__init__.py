"""The server's process: start, signals, metrics and traces."""
