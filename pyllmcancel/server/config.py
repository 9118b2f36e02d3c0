"""The server's configuration. Cheap to import: the command line reads the options before it imports the server."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pyllmcancel.requests.params import REPETITION_LIMIT
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.host_names import EVERY, HostNames
from pyllmcancel.server.limits import Limits
from pyllmcancel.server.media.settings import MediaSettings

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
    """The defaults of conversations, for requests that do not set these.

    Attributes
    ----------
    reasoning_format
        With ``none`` reasoning stays in the text. With any other name it has a field of its own; llama.cpp's parsers
        treat all other names alike.
    reasoning_budget
        The limit of reasoning tokens; None sets no limit.
    reasoning_budget_message
        The text that is inserted at the end of reasoning that has spent its budget.
    template_variables
        Variables of the template.
    prefill_assistant
        True if an answer continues the last message when that is the assistant's.
    jinja
        If False, the template is recognised as one that is built into llama.cpp, and there are no tools.
    """

    reasoning_format: ReasoningFormat = "auto"
    reasoning_budget: int | None = None
    reasoning_budget_message: str = ""
    template_variables: Mapping[str, Any] = field(default_factory=lambda: {"preserve_reasoning": True})
    prefill_assistant: bool = True
    jinja: bool = True

    @property
    def goes_on(self) -> bool:
        """True if answers continue the assistant's last message by default."""
        return self.prefill_assistant and self.jinja


class Certificate(NamedTuple):
    """PEM files for HTTPS."""

    key: Path
    certificate: Path


class Storage(NamedTuple):
    """The storage of responses.

    Attributes
    ----------
    path
        The file; None: memory.
    max_age
        The number of seconds without use after which a response is deleted.
    max_bytes
        The size limit of all responses together; the least recently used are deleted for new ones.
    """

    path: Path | None = None
    max_age: float = 30 * 86_400.0
    max_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The configuration of the HTTP side.

    Attributes
    ----------
    supersede
        The supersede key of requests that name none: their ``client-ip``, ``user`` (the body's `user` or
        `safety_identifier`) or ``session``, separate for each class of endpoint; None: no key.
    supersede_chats
        True if chats get such a key, too.
    trusted_proxies
        Addresses and networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Host`` are trusted.
    api_keys
        The keys of clients; if there are none, no key is needed.
    admin_api_keys
        Further keys, which may see and cancel every owner's requests.
    strict_model
        If True, a request for another model's name is refused; otherwise any name is served.
    unknown_fields
        The treatment of a body's fields that have no effect here.
    tags
        Words about the model for clients, without any effect.
    drain
        The number of seconds that live requests may continue after SIGTERM.
    drain_delay
        The number of seconds before that in which everything is served, while ``/health`` says that the server drains.
    sampling
        The defaults of parameters that a request does not set; their seed is ignored.
    sampling_given
        The fields of `sampling` that count even if the model's file advises other values.
    seed
        The seed of requests that name none; None draws one for each.
    n_predict
        The limit of an answer's tokens, even if its request asks for more; None sets no limit.
    repetition_limit
        The number of tokens after which answers that repeat themselves end, unless their request says another; 0: none.
    idle_owners
        The owners whose requests are idle unless they name a priority.
    low_priority_first
        If True, of an owner's requests the one with the lowest `priority` is first, as with vLLM.
    chat_template
        Jinja, or the name of a template of llama.cpp's, to use instead of the model's own.
    chat
        The defaults of conversations.
    sse_ping_interval
        Seconds of silence after which a stream gets a comment; 0: never.
    stream_keep
        The number of seconds for which a stream that can be taken up again goes on without a reader, and is kept after
        its end; 0: no stream can be taken up again.
    limits
        The limits of what one client can ask of the server.
    media
        Where pictures and sounds may come from, and their limits.
    cors_origins
        Origins whose pages may use the server; ``*`` for all, ``localhost`` for this machine's, ``SCHEME://*`` for
        those of a scheme.
    bound_to
        Names that the server listens on.
    allowed_hosts
        Further names of the server; ``*`` for all.
    storage
        The storage of responses; None: they are not stored.
    otel
        If True, requests keep what an observer needs to trace them.
    expose_prompts
        If True, the feed of events shows prompts and answers.
    slot_save_path
        The folder in which clients save slots; None: slots cannot be saved, restored or erased.
    slots, metrics, ui
        True if ``/slots`` (which shows prompts), ``/metrics`` and the live page are served.
    replica
        This server's name in answers; None: answers do not name it.
    worker_key
        The key of the front that uses this server; None: no front does.
    front
        The front at which this server registers itself as a worker.
    greets
        True if the log says at the start how to reach this server; False behind a balancer, which clients should use.
    verbose
        The default of the requests' field that adds the raw prompt and text to answers.
    """

    engine: EngineConfig
    supersede: Implied | None = None
    supersede_chats: bool = False
    trusted_proxies: tuple[str, ...] = ()
    api_keys: tuple[ApiKey, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    strict_model: bool = False
    unknown_fields: UnknownFields = "warn"
    tags: tuple[str, ...] = ()
    drain: float = 5.0
    drain_delay: float = 0.0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sampling_given: Set[str] = frozenset()
    seed: int | None = None
    n_predict: int | None = None
    repetition_limit: int = 0
    idle_owners: tuple[str, ...] = ()
    low_priority_first: bool = False
    chat_template: str | None = None
    chat: ChatDefaults = field(default_factory=ChatDefaults)
    sse_ping_interval: float = 15.0
    stream_keep: float = 300.0
    limits: Limits = field(default_factory=Limits)
    media: MediaSettings = field(default_factory=MediaSettings)
    cors_origins: tuple[str, ...] = ()
    bound_to: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    storage: Storage | None = field(default_factory=Storage)
    otel: bool = False
    expose_prompts: bool = False
    slot_save_path: Path | None = None
    slots: bool = True
    metrics: bool = True
    ui: bool = True
    replica: str | None = None
    worker_key: str | None = None
    front: FrontAddress | None = None
    greets: bool = True
    verbose: bool = False

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

    def repetition(self, given: bool | int | None) -> int:
        """Return the limit of repetition of an answer whose request asks for `given`."""
        return self.repetition_limit if given is None else REPETITION_LIMIT if given is True else int(given)
