"""Servers that know each other: cancels between servers, and one list of requests and sessions for all of them."""
