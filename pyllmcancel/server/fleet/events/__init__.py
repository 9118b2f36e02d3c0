"""``GET /v1/events`` of several servers: each reads its peers' feeds while somebody reads all of them here.

A peer is asked for what happens on itself and nothing else, so what is read here is never passed on: no loop can be.
"""
