"""A load generator for any OpenAI-compatible server, in which a chosen part of the clients hangs up.

Reading order: `plan` says which requests are made, when, and which of them are cut; `client` makes one of them, with
exact times; `scenarios` puts them to a purpose; `server_truth` reads the server's CPU time meanwhile; `summary` makes
figures of it; `table`, `report` and `plots` show them.

Nothing here uses the engine: any server, of any make, is measured in the same way.
"""
