"""pyllmcancel as an application of Ray Serve: ``serve run pyllmcancel.ray:app``, with the extra ``[ray]``.

Light to import, and without Ray: its controller imports `scaling`, and the tests of what needs no cluster do.
"""

from __future__ import annotations

from pyllmcancel.ray.application import app

__all__ = ["app"]
