"""The stand-in of the hub is one to `huggingface_hub`, and the cache that is filled from it is the hub's own."""

import random
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download, scan_cache_dir
from huggingface_hub import constants as hub_constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from pyllmcancel.hub.cache import Repository, cache_folder
from pyllmcancel.hub.fetching import HubModel
from pyllmcancel.hub.names import ModelName
from tests.support.hub import StandIn

pytest_plugins = ("tests.support.hub_fixtures",)

NAME = "user/Model"
FILES = {"deep/m-Q8_0.gguf": random.Random(1).randbytes(100_000), "config.json": b"{}"}


def theirs(hub: StandIn, cache: Path, file: str, **options: bool) -> str:
    return hf_hub_download(NAME, file, cache_dir=cache, endpoint=hub.url, token=False, **options)


def test_their_library_downloads_from_it(hub: StandIn, cache: Path) -> None:
    hub.add(NAME, FILES)
    for file, content in FILES.items():
        assert Path(theirs(hub, cache, file)).read_bytes() == content


def test_their_library_understands_its_refusals(hub: StandIn, cache: Path) -> None:
    api = HfApi(hub.url, token=False)
    with pytest.raises(RepositoryNotFoundError):
        api.model_info(NAME)
    hub.add(NAME, FILES, token="mine")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info(NAME)
    assert api.model_info(NAME, token="mine").sha == hub.repos[NAME].commit
    hub.add(NAME, FILES, token="mine", gated=True)
    assert api.model_info(NAME).sha == hub.repos[NAME].commit
    with pytest.raises(GatedRepoError):
        theirs(hub, cache, "config.json")


def test_their_library_finds_what_ours_has_downloaded(hub: StandIn, cache: Path) -> None:
    hub.add(NAME, FILES)
    ours = HubModel(ModelName(NAME), endpoint=hub.url).fetch(lambda _: True)
    hub.asked.clear()
    assert Path(theirs(hub, cache, "deep/m-Q8_0.gguf", local_files_only=True)) == ours
    assert hub.asked == []
    found = scan_cache_dir(cache)
    assert found.warnings == []
    (repo,) = found.repos
    assert (repo.repo_id, [sorted(revision.refs) for revision in repo.revisions]) == (NAME, [["main"]])


def test_ours_finds_what_their_library_has_downloaded(hub: StandIn, cache: Path) -> None:
    hub.add(NAME, FILES)
    path = Path(theirs(hub, cache, "deep/m-Q8_0.gguf"))
    hub.asked.clear()
    assert HubModel(ModelName(NAME), endpoint=hub.url).fetch(lambda _: True) == path
    assert hub.contents_asked == []
    assert Repository(NAME).find(ModelName(NAME, "Q8_0")) == path


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "/x"},
        {"HF_HOME": "~/y"},
        {"HF_HOME": "/y", "XDG_CACHE_HOME": "/x"},
        {"HUGGINGFACE_HUB_CACHE": "/z"},
        {"HF_HUB_CACHE": "$HOME/w", "HUGGINGFACE_HUB_CACHE": "/z"},
    ],
)
def test_the_cache_is_where_their_library_has_it(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # Theirs is read when the module is imported: here its source runs once more.
    module: dict[str, object] = {}
    exec(compile(Path(hub_constants.__file__).read_text("utf-8"), "constants", "exec"), module)
    assert str(cache_folder()) == module["HF_HUB_CACHE"]
