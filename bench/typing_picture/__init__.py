"""A completion at every key, on this server and on llama-server, as an animated picture made from measured times.

    python -m bench.typing_picture --model MODEL.gguf OUT.svg

Both servers run in turn, with one slot, the same model and the same keys; the client closes the older request when it
sends the newer one, as editors do. When a computation began and ended is what the servers themselves say: this one in
``/v1/requests``, llama-server in its log. The times are kept in OUT.json; ``--draw OUT.json OUT.svg`` draws them again.
"""
