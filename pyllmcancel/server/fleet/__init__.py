"""Servers that know each other: who cancels whom, and one list of requests and sessions, for all of them."""
