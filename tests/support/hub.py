"""A stand-in of the Hugging Face hub: what `huggingface_hub` asks for, answered as the hub answers it.

Two servers, of two addresses, since the hub redirects to files on other hosts: a client must not send its token there.
The tests of `tests/unit/test_hub_stand_in.py` have `huggingface_hub` itself download from it.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support import stub_server

LIMIT = 60.0
CHUNK = 100_000  # bytes that a client writes at once
SILENT_LIMIT = 120  # seconds; longer than a server takes to start on a busy machine
SMALL = 64  # bytes; what is no longer than this is not in Git LFS
API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?")
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")

Fault = Callable[["Handler", bytes], None]


@dataclass
class Repo:
    """The content of a repository, and who may read it: without a `token` anybody; what a gated one has, all see."""

    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False
    served: dict[str, bytes] = field(default_factory=dict)  # what a lying hub sends instead, by path

    @property
    def commit(self) -> str:
        names = json.dumps({path: digest_of(content) for path, content in self.files.items()})
        return hashlib.sha1(names.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    range: str | None
    token: str | None


class StandIn(AbstractContextManager["StandIn"]):
    """Serves `repos` until it is closed."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.asked: list[Asked] = []  # everything, in its order; of content the path is /ETAG
        self.faults: deque[Fault] = deque()  # of the next requests for content, one each, instead of an answer
        self.page_faults: deque[Fault] = deque()  # of the next requests for a page of an index, see `package_index`
        self.refusal: tuple[int, dict[str, str]] | None = None  # a status and headers for every request to the hub
        self.mute = False  # whether nothing is answered until the stand-in is released
        self.reached = threading.Event()  # a fault has come so far as to wait
        self.released = threading.Event()
        self._hub = Server(self, HubHandler, "127.0.0.1")
        self._files = Server(self, FilesHandler, "127.0.0.2")
        self.url = self._hub.url

    def add(self, repo: str, files: dict[str, bytes], **options: Any) -> Repo:
        self.repos[repo] = Repo(files, **options)
        return self.repos[repo]

    @property
    def contents_asked(self) -> list[str | None]:
        """The ranges of the requests for content."""
        return [asked.range for asked in self.asked if asked.path.count("/") == 1]

    def file_url(self, etag: str) -> str:
        return f"{self._files.url}/{etag}"

    def close(self) -> None:
        """From now on nobody answers. Idempotent."""
        self.released.set()
        self._hub.close()
        self._files.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self, n_bytes: int) -> Fault:
        """End the connection after this number of bytes."""
        return lambda handler, content: handler.send(content, n_bytes)

    def silent(self, n_bytes: int) -> Fault:
        """After this number of bytes nothing more comes until the stand-in is released, and then the end."""

        def answer(handler: Handler, content: bytes) -> None:
            handler.send(content, n_bytes)
            self.reached.set()
            self.released.wait(SILENT_LIMIT)

        return answer

    def slow(self, n_bytes: int, taken: threading.Semaphore) -> Fault:
        """So many bytes at a time, each after the first when `taken` says so."""

        def answer(handler: Handler, content: bytes) -> None:
            handler.send(content, n_bytes)
            for begin in range(n_bytes, len(content), n_bytes):
                taken.acquire(timeout=LIMIT)
                handler.wfile.write(content[begin:][:n_bytes])
                handler.wfile.flush()

        return answer

    def no_ranges(self, handler: Handler, content: bytes) -> None:
        """All of it is sent, whatever was asked for."""
        handler.send(content, begin=0)

    def busy(self, handler: Handler, _content: bytes) -> None:
        handler.reply(503, b"")


class Server(stub_server.StubServer):
    daemon_threads = False

    def __init__(self, stand_in: StandIn, handler: type[Handler], host: str) -> None:
        self.stand_in = stand_in
        super().__init__(handler, host)

    def handle_error(self, *_: object) -> None:
        """A client that has left is nothing to tell."""


class Handler(stub_server.Handler):
    server: Server
    timeout = LIMIT

    def setup(self) -> None:
        super().setup()
        self.stand_in = self.server.stand_in

    def note(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        self.stand_in.asked.append(Asked(self.command, self.path, self.headers.get("Range"), token))

    def send(self, content: bytes, n_bytes: int | None = None, begin: int | None = None) -> None:
        """Content from where the request says, and of that `n_bytes`."""
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = begin if begin is not None else int(asked[1]) if asked else 0
        if asked and begin >= len(content):
            self.reply(416, b"", Content_Range=f"bytes */{len(content)}")
            return
        partly = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}
        self.send_response(206 if begin else 200)
        for name, value in ({"Content-Length": str(len(content) - begin), "Connection": "close"} | partly).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(content[begin:][:n_bytes])
                self.wfile.flush()
        self.close_connection = True


class HubHandler(Handler):
    def do_GET(self) -> None:  # noqa: N802 - named by the library
        self.note()
        path = unquote(urlsplit(self.path).path)
        about, file = API.fullmatch(path), RESOLVE.fullmatch(path)
        name = (about or file or [None, ""])[1]
        repo = self.stand_in.repos.get(name)
        if self.stand_in.mute:
            self.stand_in.released.wait(LIMIT)
        elif self.stand_in.refusal is not None:
            status, headers = self.stand_in.refusal
            self.reply(status, b"", **headers)
        elif repo is None:
            # The hub tells nobody without a token whether there is such a repository.
            status = 404 if self.stand_in.asked[-1].token else 401
            self.reply(status, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        elif repo.token not in (None, self.stand_in.asked[-1].token) and not (repo.gated and about):
            self.refuse(repo)
        elif about:
            self.reply(200, json.dumps(described(name, repo)).encode(), Content_Type="application/json")
        elif file and file[3] in repo.files:
            self.resolve(repo, file[3])
        else:
            self.reply(404, b"", X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")

    do_HEAD = do_GET  # noqa: N815

    def refuse(self, repo: Repo) -> None:
        token = self.stand_in.asked[-1].token
        if repo.gated:
            self.reply(401 if token is None else 403, b"", X_Error_Code="GatedRepo", X_Error_Message="Restricted")
        elif token is not None:
            self.reply(401, b"", X_Error_Message="Invalid credentials in Authorization header")
        else:
            self.reply(401, b"", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")

    def resolve(self, repo: Repo, path: str) -> None:
        content = repo.files[path]
        etag = digest_of(content)
        known = {"X-Repo-Commit": repo.commit, "ETag": f'"{etag}"'}
        if len(content) <= SMALL:
            self.reply(200, content, **known)
        else:
            linked = {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
            self.reply(302, b"", Location=self.stand_in.file_url(etag), **known, **linked)


class FilesHandler(Handler):
    def do_GET(self) -> None:  # noqa: N802 - named by the library
        self.note()
        if self.stand_in.asked[-1].token is not None:
            self.reply(400, b"Only one auth mechanism allowed")
            return
        etag = self.path.strip("/")
        held = [repo.served.get(path, content) for repo in self.stand_in.repos.values()
                for path, content in repo.files.items() if digest_of(content) == etag]  # fmt: skip
        if self.stand_in.faults and self.command == "GET":
            self.stand_in.faults.popleft()(self, held[0])
        else:
            self.send(held[0])

    do_HEAD = do_GET  # noqa: N815


def digest_of(content: bytes) -> str:
    """The etag: SHA-256 of what is in Git LFS, Git's own digest of the rest."""
    if len(content) > SMALL:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def described(name: str, repo: Repo) -> dict[str, Any]:
    """The hub's answer about a model, with ``blobs=true``."""
    siblings = []
    for path, content in sorted(repo.files.items()):
        sibling: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": "0" * 40}
        if len(content) > SMALL:
            sibling["lfs"] = {"sha256": digest_of(content), "size": len(content), "pointerSize": 130}
        else:
            sibling["blobId"] = digest_of(content)
        siblings.append(sibling)
    return {"id": name, "modelId": name, "sha": repo.commit, "private": repo.token is not None, "siblings": siblings}
