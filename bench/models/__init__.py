"""Several models behind one address: what their requests, loads and cancels come to on a real server.

``python -m bench.models --help`` lists the parts; each module has one.
"""
