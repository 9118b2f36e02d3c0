"""A load generator for any OpenAI-compatible server, in which a chosen part of the clients hangs up.

Reading order: `plan` says which requests are made, when, and which of them are cut; `client` and `call` make one of
them, with exact times; `runner` makes them all; `scenarios` puts them to a purpose; `server_truth` looks at its
process meanwhile; `summary` says what it comes to; `table`, `report` and `plots` show it.

Nothing here uses the engine: any server, of any make, is measured in the same way.
"""
