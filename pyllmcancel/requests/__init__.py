"""Requests: the one writer of their states, the queue, sessions, families, holds, and their streams."""
