"""Drafted tokens, measured: what drafting gains, and that it changes no answer.

    python -m bench.drafting --model MODEL.gguf                   # everything
    python -m bench.drafting --model MODEL.gguf typing clients    # some scenarios; --help lists them

Servers run side by side and take turns: this project's server without drafting and with it, and llama-server of the
same source, without drafting and with its n-grams. Prompts are source code of Python's standard library. Its files are
divided by a hash of their names: those that serve to tune are never measured.
"""
