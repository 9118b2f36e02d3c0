"""The build's results: the extension module, the installed files, the stub, and the script that fetches llama.cpp."""
