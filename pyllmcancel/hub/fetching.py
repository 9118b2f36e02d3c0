"""From a model's name to its file in the hub's cache, through `huggingface_hub`.

The content comes by plain HTTP, as for llama.cpp: `hf_hub_download` begins an interrupted download anew in the next
process, and checks a file's length only. Its other protocol, Xet, does not resume either.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from pyllmcancel import __version__
from pyllmcancel.errors import HubError, HubUnreachable, UsageError
from pyllmcancel.hub.background import Fetch, cannot_be_stored, fetched
from pyllmcancel.hub.cache import Repository
from pyllmcancel.hub.names import ModelName, projector_of
from pyllmcancel.hub.progress import in_units

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger("pyllmcancel.hub")

TOKEN = re.compile(r"[!-~]+")  # any other character would be refused with a message that shows the token
DIGEST = re.compile("[0-9a-f]{64}|[0-9a-f]{40}")
US: dict[str, Any] = {"library_name": "pyllmcancel", "library_version": __version__}


class HubFile(NamedTuple):
    """A file of a commit; `etag` names its content: its SHA-256 in Git LFS, or Git's own digest of a small file."""

    path: str
    size: int
    etag: str


def require_library() -> None:
    """Raise UsageError, which names what to install, without `huggingface_hub`."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UsageError("--hf-repo needs huggingface_hub: pip install 'pyllmcancel[hub]'")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub; `offline`: of the cache only.

    `token` is None for that of ``HF_TOKEN`` or ``hf auth login``, `endpoint` for that of ``HF_ENDPOINT``.
    """

    name: ModelName
    token: str | None = None
    offline: bool = False
    endpoint: str | None = None

    def fetch(self, progress: Callable[[float], bool]) -> Path | None:
        """Return the file to load, downloaded first if need be; see `fetched`."""
        return fetched(_Fetch(self), str(self.name), progress)

    def fetch_projector(self, progress: Callable[[float], bool]) -> Path | None:
        """Return the file of the model's projector in the same way; None if the model has none. `fetch` comes first."""
        return fetched(_Fetch(self, of_projector=True), f"the projector of {self.name}", progress)


class _Fetch(Fetch):
    """Fetches a model of the hub, or the projector that lies beside it."""

    def __init__(self, model: HubModel, *, of_projector: bool = False) -> None:
        super().__init__()
        self._model = model
        self._of_projector = of_projector
        self._name = model.name
        self._repository = Repository(model.name.repo)

    def find(self) -> Path | None:
        if self._model.offline:
            return self._cached("--offline")
        try:
            return self._download()
        except HubUnreachable as error:
            return self._cached(str(error))
        except (HubError, OSError) as error:
            if self._in_cache() is None:
                raise
            why = cannot_be_stored(error) if isinstance(error, OSError) else error
            raise HubError(f"{why}. A copy is in the cache: --offline serves it") from error

    def _in_cache(self) -> Path | None:
        model = self._repository.find(self._name)
        return self._repository.find_projector(model) if self._of_projector and model is not None else model

    def _cached(self, why: str) -> Path | None:
        path = self._in_cache()
        if path is not None:
            text = "%s: serving %s from the cache, without a check for a newer one (%s)"
            logger.info(text, self._name, path.name, why)
        elif not self._of_projector:
            raise HubError(f"{why}; and {self._name} is not in the cache, {self._repository.folder}")
        return path

    def _download(self) -> Path | None:
        hub = Hub(self._name.repo, self._model.token, self._model.endpoint)
        commit, known = hub.latest()
        files = [known[path] for path in self._choose(known)]
        if not files:
            return None  # there is no projector
        self.total = sum(file.size for file in files)
        missing = [file for file in files if not self._repository.blob(file.etag).exists()]
        if missing:
            parts = f" and {len(files) - 1} more parts" if len(files) > 1 else ""
            logger.info("downloading %s%s of %s: %s", files[0].path, parts, self._name, in_units(self.total))
        found = [self._get(hub, commit, file) for file in files]
        self._repository.set_main(commit)
        if not missing:
            logger.info("%s: %s is in the cache, and is the newest", self._name, found[0].name)
        return found[0]

    def _choose(self, paths: Collection[str]) -> tuple[str, ...]:
        chosen = self._name.choose(paths)
        if not self._of_projector:
            return chosen
        found = projector_of(chosen[0], paths)
        return () if found is None else (found,)

    def _get(self, hub: Hub, commit: str, file: HubFile) -> Path:
        before, blob = self.done, self._repository.blob(file.etag)
        with self._repository.locked(file.etag):
            if not blob.exists():
                self.complete(blob, file.path, file.size, file.etag, lambda out: hub.get(commit, file, out, self.count))
        self.done = before + file.size
        return self._repository.install(commit, file.path, file.etag)


class Hub:
    """A repository of the hub. Its methods raise HubError; HubUnreachable if there is no valid answer."""

    def __init__(self, repo: str, token: str | None, endpoint: str | None) -> None:
        # Otherwise the library asks the hub once a day for a list of the programs that it would report.
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from huggingface_hub import constants, get_token

        self._repo = repo
        self._endpoint = endpoint or constants.ENDPOINT
        self._token = token or get_token()
        if self._token is not None and not TOKEN.fullmatch(self._token):
            raise HubError("the token contains a blank, or another character that is not allowed")

    def latest(self) -> tuple[str, Mapping[str, HubFile]]:
        """Return the newest commit, and its files by path."""
        from huggingface_hub import HfApi, constants

        api = HfApi(self._endpoint, token=self._token or False, **US)
        with self._in_words():
            found = api.model_info(self._repo, files_metadata=True, timeout=float(constants.HF_HUB_ETAG_TIMEOUT))
        files = {}
        for file in found.siblings or ():
            etag = file.lfs.sha256 if file.lfs else file.blob_id
            size = file.lfs.size if file.lfs else file.size
            if etag is not None and size is not None and _is_sane(file.rfilename, etag):
                files[file.rfilename] = HubFile(file.rfilename, size, etag)
        if found.sha is None or not DIGEST.fullmatch(found.sha):
            raise HubUnreachable(f"{self._endpoint} gives an invalid answer about {self._repo}")
        return found.sha, files

    def get(self, commit: str, file: HubFile, out: BinaryIO, count: Callable[[int], None]) -> None:
        """Append to `out` what is missing of a file; `count` is called with the number of bytes that have come."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        class Counter(nullcontext[Any]):
            """Stands where a progress bar is expected."""

            def __init__(self, **_: object) -> None:
                super().__init__(self)

            def update(self, n_bytes: int) -> None:
                count(n_bytes)

        with self._in_words():
            http_get(
                hf_hub_url(self._repo, file.path, revision=commit, endpoint=self._endpoint),
                out,
                resume_size=out.tell(),
                # The client follows redirects, and sends no token to another origin.
                headers=build_hf_headers(token=self._token or False, **US) | {"Accept-Encoding": "identity"},
                expected_size=file.size,
                tqdm_class=cast("Any", Counter),
            )

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            yield
        except HfHubHTTPError as error:
            raise self._refusal(error.response) from error
        except OfflineModeIsEnabled as error:
            raise HubUnreachable("HF_HUB_OFFLINE is set") from error
        except (KeyError, TypeError, JSONDecodeError) as error:
            raise HubUnreachable(f"{self._endpoint} gives an invalid answer about {self._repo}") from error
        except ValueError as error:  # an impossible name, or a file that the hub gives by Xet only
            raise HubError(str(error)) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            why = str(error) or type(error).__name__
            raise HubUnreachable(f"{self._endpoint} cannot be reached, or broke off: {why}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise HubUnreachable(f"{self._endpoint} broke off: {error}") from error

    def _refusal(self, response: httpx2.Response) -> HubError:
        """Return the error for an answer that is not a success, with advice."""
        status, code = response.status_code, response.headers.get("X-Error-Code")
        said = response.headers.get("X-Error-Message") or f"status {status}"
        give = "give --hf-token, or set HF_TOKEN" if self._token is None else "the token that was sent has no access"
        where = f"{self._repo} on {self._endpoint}"
        if status == 429 or status >= 500:
            return HubUnreachable(f"{self._endpoint} cannot answer now ({said}): try again later")
        if code == "GatedRepo":
            return HubError(
                f"{self._repo} is gated: accept its terms on {self._endpoint}/{self._repo} with your account, and"
                f" {give}"
            )
        if said == "Invalid credentials in Authorization header":
            return HubError(f"{self._endpoint} does not accept the token: make a new one")
        if code == "RepoNotFound" or (status in (401, 404) and code != "EntryNotFound"):
            return HubError(f"there is no {where}, or it is private: check the name; if it is private, {give}")
        return HubError(f"there is no access to {where} ({said}): {give}")


def _is_sane(path: str, etag: str) -> bool:
    """Return whether both can be names in the cache: the hub's answer must not lead outside of it."""
    parts = PurePosixPath(path).parts
    inside = bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path
    return inside and bool(DIGEST.fullmatch(etag))
