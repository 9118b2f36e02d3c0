"""A load for any OpenAI-compatible server, in which a chosen share of the clients hangs up.

Reading order: `client` makes one request, with exact times; `load` says which requests are made and cut; `server_truth`
reads the server's CPU time meanwhile; `report` computes the figures, and shows them.

Nothing here uses the engine: any server, of any make, is measured in the same way.
"""
