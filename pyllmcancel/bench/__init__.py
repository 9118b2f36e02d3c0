"""A load generator for any OpenAI-compatible server, in which a chosen share of the clients hangs up.

Reading order: `plan` decides which requests are made, when, and which of them are cut; `client` makes one of them, with
exact times; `scenarios` are the kinds of load; `server_truth` reads the server's CPU time meanwhile; `summary` computes
the figures; `table`, `report` and `plots` show them.

Nothing here uses the engine: any server, of any make, is measured in the same way.
"""
