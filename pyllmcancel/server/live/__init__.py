"""``GET /v1/events``: the engine's events, sent to readers as they happen.

The engine's threads only append to the `Recorder`. A few times a second the event loop moves the records into the
`ring`, and wakes the readers. Each reader is a place in the ring, and its events are encoded once for all readers that
see the same (`feed`).
"""
