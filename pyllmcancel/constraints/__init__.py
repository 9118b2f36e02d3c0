"""Constraints on answers: schemas, grammars and calls of tools, decided token by token."""
