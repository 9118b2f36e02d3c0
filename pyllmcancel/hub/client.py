"""Requests to the hub, through `huggingface_hub`: the files of a repository, and their content.

The content comes by plain HTTP, as for llama.cpp: `huggingface_hub` restarts an interrupted download in the next
process, and checks a file's length only. Its other protocol, Xet, reports neither progress nor errors on the way.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pyllmcancel import __version__
from pyllmcancel.errors import HubError, HubUnreachable, UsageError

if TYPE_CHECKING:
    import httpx2

TOKEN = re.compile(r"[!-~]+")  # any other character would be refused with a message that shows the token
SHA256, SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit.

    Attributes
    ----------
    path
        The path in the repository.
    size
        The size in bytes.
    etag
        The name of the content in the cache: the SHA-256 of a file in Git LFS, or Git's own digest of a small file.
    """

    path: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit's files."""

    id: str
    files: Mapping[str, HubFile]


def require_library() -> None:
    """Raise UsageError, which names what to install, without `huggingface_hub`."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UsageError("--hf-repo needs huggingface_hub: pip install 'pyllmcancel[hub]'")


class Hub:
    """The hub. Its methods raise HubError; HubUnreachable if the hub cannot be reached, or gives an invalid answer.

    Parameters
    ----------
    token
        The token; None: that of ``HF_TOKEN``, or of ``hf auth login``.
    endpoint
        The hub's address; None: that of ``HF_ENDPOINT``, or else huggingface.co.
    """

    def __init__(self, token: str | None = None, *, endpoint: str | None = None) -> None:
        # Otherwise the library asks the hub once a day for a list of the programs that it would report.
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from huggingface_hub import constants, get_token

        self.endpoint = endpoint or constants.ENDPOINT
        self.token = token or get_token()
        if self.token is not None and not TOKEN.fullmatch(self.token):
            raise HubError("the token contains a blank, or another character that is not allowed")
        timeouts = (constants.HF_HUB_ETAG_TIMEOUT, constants.HF_HUB_DOWNLOAD_TIMEOUT)
        self._answer_seconds, self._data_seconds = map(float, timeouts)

    def latest(self, repo: str) -> Commit:
        """Return the newest commit, with the sizes and digests of its GGUF files."""
        from huggingface_hub import HfApi

        api = HfApi(self.endpoint, token=self.token or False, library_name="pyllmcancel", library_version=__version__)
        with self._in_words(repo):
            try:
                found = api.model_info(repo, files_metadata=True, timeout=self._answer_seconds)
            except (KeyError, TypeError, JSONDecodeError) as error:
                raise HubUnreachable(f"{self.endpoint} gives an invalid answer about {repo}") from error
        files = {}
        for file in found.siblings or ():
            etag = file.lfs.sha256 if file.lfs else file.blob_id
            size = file.lfs.size if file.lfs else file.size
            if etag is not None and size is not None and _is_sane(file.rfilename, etag):
                files[file.rfilename] = HubFile(file.rfilename, size, etag)
        if found.sha is None or not SHA1.fullmatch(found.sha):
            raise HubUnreachable(f"{self.endpoint} gives an invalid answer about {repo}")
        return Commit(found.sha, files)

    @contextmanager
    def content(self, repo: str, commit: str, file: HubFile, begin: int) -> Iterator[httpx2.Response]:
        """Return the answer with a file's content from byte `begin` on: 206, or 200 with all of it, or 416."""
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

        url = hf_hub_url(repo, file.path, revision=commit, endpoint=self.endpoint)
        token = self.token or False
        headers = build_hf_headers(token=token, library_name="pyllmcancel", library_version=__version__)
        headers["Accept-Encoding"] = "identity"
        if begin:
            headers["Range"] = f"bytes={begin}-"
        # The client follows redirects, and sends no token to another origin.
        asked = get_session().stream("GET", url, headers=headers, timeout=self._data_seconds)
        with self._in_words(repo), asked as response:
            if not (begin and response.status_code == 416):
                hf_raise_for_status(response)
            yield response

    @contextmanager
    def _in_words(self, repo: str) -> Iterator[None]:
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

        try:
            yield
        except HfHubHTTPError as error:
            raise self._refusal(repo, error.response) from error
        except HFValidationError as error:
            raise HubError(str(error)) from error
        except OfflineModeIsEnabled as error:
            raise HubUnreachable("HF_HUB_OFFLINE is set") from error
        except httpx2.TimeoutException as error:
            raise HubUnreachable(f"{self.endpoint} is silent ({type(error).__name__})") from error
        except (httpx2.ConnectError, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise HubUnreachable(f"{self.endpoint} cannot be reached: {error}") from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise HubUnreachable(f"{self.endpoint} broke off: {str(error) or type(error).__name__}") from error

    def _refusal(self, repo: str, response: httpx2.Response) -> HubError:
        """Return the error for an answer that is not a success, with advice."""
        status, code = response.status_code, response.headers.get("X-Error-Code")
        said = response.headers.get("X-Error-Message") or f"status {status}"
        give = "give --hf-token, or set HF_TOKEN" if self.token is None else "the token that was sent has no access"
        if status == 429 or status >= 500:
            return HubUnreachable(f"{self.endpoint} cannot answer now ({said}): try again later")
        told = f"{self.endpoint} does not give {repo}: {said}"
        if code == "GatedRepo":
            told = f"{repo} is gated: accept its terms on {self.endpoint}/{repo} with your account, and {give}"
        elif code == "EntryNotFound":
            told = f"{repo} has no such file ({said})"
        elif said == "Invalid credentials in Authorization header":
            told = f"{self.endpoint} does not accept the token: make a new one on {self.endpoint}/settings/tokens"
        elif code == "RepoNotFound" or status in (401, 404):
            told = f"there is no {repo} on {self.endpoint}, or it is private: check the name; if it is private, {give}"
        elif status == 403:
            told = f"{self.endpoint} refuses {repo} ({said}): {give}"
        return HubError(told)


def _is_sane(path: str, etag: str) -> bool:
    """Return whether both can be names in the cache: the hub's answer must not lead outside of it."""
    parts = PurePosixPath(path).parts
    inside = bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path
    return inside and bool(SHA256.fullmatch(etag) or SHA1.fullmatch(etag))
