"""The server's configuration. Cheap to import: the command line reads the options before it imports the server."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pyllmcancel.media.checks import DEFAULT_LIMITS
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.host_names import EVERY, HostNames
from pyllmcancel.server.limits import Limits

if TYPE_CHECKING:
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.front.place import FrontAddress


# The treatment of fields that have no effect: ignored silently, reported in the log and a header, or refused.
UnknownFields = Literal["ignore", "warn", "refuse"]
Implied = Literal["client-ip", "user", "session"]  # by what a request that names no supersede key gets one
ReasoningFormat = Literal["none", "auto", "deepseek", "deepseek-legacy"]

ADMIN = "admin"  # the owner of the administrator's own requests


class ApiKey(NamedTuple):
    """A key, and the name of its owner; an owner may have several keys."""

    owner: str
    key: str

    @classmethod
    def unnamed(cls, key: str) -> ApiKey:
        """Return a key whose owner is named by a digest of the key."""
        return cls(f"key-{hashlib.sha256(key.encode()).hexdigest()[:12]}", key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDefaults:
    """The defaults of conversations, for requests that do not set these."""

    # With "none" reasoning stays in the text, else it has a field of its own: llama.cpp treats all other names alike.
    reasoning_format: ReasoningFormat = "auto"
    reasoning_budget: int | None = None  # the limit of reasoning tokens; None: no limit
    reasoning_budget_message: str = ""  # inserted at the end of reasoning that has spent its budget
    template_variables: Mapping[str, Any] = field(default_factory=lambda: {"preserve_reasoning": True})
    prefill_assistant: bool = True  # answers continue the last message when that is the assistant's
    jinja: bool = True  # if False, the template is recognised as one built into llama.cpp, and there are no tools


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings:
    """Where pictures and sounds may come from, besides the body itself, and the limits of one request's."""

    urls: bool = False  # True if pictures are fetched from public addresses
    path: Path | None = None  # the folder below which ``file://`` addresses are; None: no files are read
    max_items: int = 100  # the limit of pictures and sounds in a request
    max_bytes: int = 10 << 20  # the size limit of one of them, as a file
    max_pixels: int = DEFAULT_LIMITS.pixels  # the limit of a picture's width times height
    max_seconds: float = DEFAULT_LIMITS.seconds  # the limit of a sound's length
    max_prepared: int = 2 << 30  # the size limit of what is prepared for all live requests together
    fetch_timeout: float = 10.0  # seconds for everything that a request has fetched


class Certificate(NamedTuple):
    """PEM files for HTTPS."""

    key: Path
    certificate: Path


class Storage(NamedTuple):
    """The storage of responses."""

    path: Path | None = None  # the file; None: memory
    max_age: float = 30 * 86_400.0  # seconds without use after which a response is deleted
    max_bytes: int = 512 << 20  # of all responses together; the least recently used are deleted for new ones


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The configuration of the HTTP side."""

    engine: EngineConfig
    # The supersede key of requests that name none: the client's address, the `user` or `safety_identifier` of the body,
    # or the session, separate for each class of endpoint; None: no key.
    supersede: Implied | None = None
    supersede_chats: bool = False  # chats get such a key, too
    # Addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Host are trusted.
    trusted_proxies: tuple[str, ...] = ()
    api_keys: tuple[ApiKey, ...] = ()  # of clients; if there are none, no key is needed
    admin_api_keys: tuple[str, ...] = ()  # further keys, which may see and cancel every owner's requests
    strict_model: bool = False  # a request for another model's name is refused; otherwise any name is served
    unknown_fields: UnknownFields = "warn"
    tags: tuple[str, ...] = ()  # words about the model for clients, without any effect
    drain: float = 5.0  # seconds that live requests may continue after SIGTERM
    drain_delay: float = 0.0  # seconds before that, in which everything is served, and /health says that it drains
    sampling: SamplingParams = field(default_factory=SamplingParams)  # defaults of requests; its seed is ignored
    sampling_given: Set[str] = frozenset()  # its fields that count even if the model's file advises other values
    seed: int | None = None  # of requests that name none; None draws one for each
    n_predict: int | None = None  # the limit of an answer's tokens, even if its request asks for more; None: no limit
    # The number of tokens after which answers that repeat themselves end, unless their request says another; 0: none.
    repetition_limit: int = 0
    idle_owners: tuple[str, ...] = ()  # the owners whose requests are idle unless they name a priority
    low_priority_first: bool = False  # of an owner's requests the one with the lowest priority is first, as with vLLM
    chat_template: str | None = None  # Jinja, or the name of a template of llama.cpp's, instead of the model's own
    chat: ChatDefaults = field(default_factory=ChatDefaults)
    sse_ping_interval: float = 15.0  # seconds of silence after which a stream gets a comment; 0: never
    # Seconds for which a stream that can be taken up again goes on without a reader, and is kept after its end; 0: no
    # stream can be taken up again.
    stream_keep: float = 300.0
    limits: Limits = field(default_factory=Limits)
    media: MediaSettings = field(default_factory=MediaSettings)
    # Origins whose pages may use the server; * for all, localhost for this machine's, SCHEME://* for those of a scheme.
    cors_origins: tuple[str, ...] = ()
    bound_to: tuple[str, ...] = ()  # names that the server listens on
    allowed_hosts: tuple[str, ...] = ()  # further names of the server; * for all
    storage: Storage | None = field(default_factory=Storage)  # None: responses are not stored
    otel: bool = False  # requests keep what an observer needs to trace them
    expose_prompts: bool = False  # the feed of events shows prompts and answers
    slot_save_path: Path | None = None  # the folder in which clients save slots; None: they cannot
    slots: bool = True  # /slots, which shows prompts, is served
    metrics: bool = True  # /metrics is served
    ui: bool = True  # the live page is served
    replica: str | None = None  # this server's name in answers; None: answers do not name it
    worker_key: str | None = None  # the key of the front that uses this server; None: no front does
    front: FrontAddress | None = None  # at which this server registers itself as a worker
    greets: bool = True  # the log says how to reach this server; not behind a balancer, which clients should use
    verbose: bool = False  # the default of the requests' field that adds the raw prompt and text to answers

    @property
    def shared(self) -> bool:
        """True if there are several owners, the administrator among them, who must not learn of each other."""
        return len({key.owner for key in self.api_keys}) + bool(self.admin_api_keys) > 1

    def served_as(self) -> HostNames | None:
        """The names under which requests are served; None: any name.

        A page whose name was rebound to this server has no key. So if keys are needed, names are checked only on
        demand.
        """
        if EVERY in self.allowed_hosts or ((self.api_keys or self.worker_key) and not self.allowed_hosts):
            return None
        return HostNames((*self.bound_to, *self.allowed_hosts))

    def request_defaults(self) -> SamplingParams:
        """Return the values of the parameters that the next request leaves open."""
        return self.sampling.with_seed(-1 if self.seed is None else self.seed)

    def limited(self, max_tokens: int | None) -> int | None:
        """Return the limit of an answer's tokens if its request allows `max_tokens`."""
        limits = [limit for limit in (max_tokens, self.n_predict) if limit is not None]
        return min(limits, default=None)
