"""Models on Ray: ``serve run deploy/ray.yaml``, with the extra ``[ray]``. Cheap to import, and without Ray."""

from __future__ import annotations

from pyllmcancel.ray.applications import front, model

__all__ = ["front", "model"]
