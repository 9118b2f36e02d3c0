"""Fixtures of what is tested against the stand-in of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from pyllmcancel.hub import download
from tests.support.hub import StandIn


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no token, and no waiting between attempts."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)
    return tmp_path / "hub"


@pytest.fixture
def hub(cache: Path) -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in
    huggingface_hub.close_session()
