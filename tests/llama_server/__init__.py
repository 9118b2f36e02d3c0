"""llama.cpp's own server tests, unmodified, against this server; see `__main__`."""
