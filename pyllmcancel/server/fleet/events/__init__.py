"""``GET /v1/events`` of several servers: each server reads its peers' feeds while a client reads all of them here.

A peer is asked for its own events only, so events read here are never passed on, and there can be no loop.
"""
