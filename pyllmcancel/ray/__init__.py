"""pyllmcancel as an application of Ray Serve: ``serve run pyllmcancel.ray:app``, with the extra ``[ray]``.

Cheap to import, and without Ray: Ray's controller imports `scaling`, and so do tests that need no cluster.
"""

from __future__ import annotations

from pyllmcancel.ray.application import app

__all__ = ["app"]
