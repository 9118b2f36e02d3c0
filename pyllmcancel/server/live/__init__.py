"""``GET /v1/events``: what the engine does, told to readers as it happens.

The engine's threads append to the `recorder`, and that is all that they pay. A few times a second the event loop moves
what is there into the `ring`, and wakes the readers; each of them is a place in the ring, and what is sent to it is
encoded once for all that see the same (`feed`).
"""
