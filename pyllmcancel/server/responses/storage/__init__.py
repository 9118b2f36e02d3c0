"""Responses that outlive their requests, in SQLite."""
