"""Models on Ray: ``serve run deploy/ray.yaml``, with the extra ``[ray]``. Cheap to import, and without Ray."""

from __future__ import annotations

from pyllmcancel.ray.application import app

__all__ = ["app"]
