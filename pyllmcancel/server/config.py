"""How the server is set up. Light to import: the command line reads its options before it imports the server."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.host_names import EVERY, HostNames
from pyllmcancel.server.limits import Limits

if TYPE_CHECKING:
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.server.fleet.addresses import FleetSettings


# What becomes of fields that have no effect: silence, a line in the log and a header, or a refusal.
UnknownFields = Literal["ignore", "warn", "refuse"]
ReasoningFormat = Literal["none", "auto", "deepseek", "deepseek-legacy"]

ADMIN = "admin"  # the owner of the administrator's own requests


class ApiKey(NamedTuple):
    """A key, and the name of its owner; several may be one owner's."""

    owner: str
    key: str

    @classmethod
    def unnamed(cls, key: str) -> ApiKey:
        """One whose owner is named by a digest of it."""
        return cls(f"key-{hashlib.sha256(key.encode()).hexdigest()[:12]}", key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDefaults:
    """How conversations are told to the model, where a request does not say.

    Attributes
    ----------
    reasoning_format
        ``none``: reasoning stays in the text; by the other names it has a field of its own: llama.cpp's parsers make no
        difference between them.
    reasoning_budget
        Most tokens of reasoning; None sets no limit.
    reasoning_budget_message
        What is written at the end of reasoning that has spent its budget.
    template_variables
        Variables of the template.
    prefill_assistant
        An answer goes on with the last message, if that is the assistant's.
    jinja
        False: the template is recognised as one that llama.cpp has built in, and there are no tools.
    """

    reasoning_format: ReasoningFormat = "auto"
    reasoning_budget: int | None = None
    reasoning_budget_message: str = ""
    template_variables: Mapping[str, Any] = field(default_factory=lambda: {"preserve_reasoning": True})
    prefill_assistant: bool = True
    jinja: bool = True

    @property
    def goes_on(self) -> bool:
        """True if answers go on with the assistant's last message, unasked."""
        return self.prefill_assistant and self.jinja


class Certificate(NamedTuple):
    """PEM files for HTTPS."""

    key: Path
    certificate: Path


class Storage(NamedTuple):
    """Where responses are stored, and for how long.

    Attributes
    ----------
    path
        None: in memory.
    max_age
        Seconds after its last use until a response is forgotten.
    max_bytes
        Of all together; those that were not used for longest make room for others.
    """

    path: Path | None = None
    max_age: float = 30 * 86_400.0
    max_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the HTTP side is set up.

    Attributes
    ----------
    supersede
        Under which key a request supersedes that names none: its ``client-ip``, ``user`` (the body's `user` or
        `safety_identifier`) or ``session``, apart for each class of endpoint; None: under none.
    supersede_chats
        Chats do so, too.
    trusted_proxies
        Addresses and networks whose ``X-Forwarded-For`` names the client, and ``X-Forwarded-Host`` the server.
    api_keys
        Any of them opens; empty: no key is asked for.
    admin_api_keys
        These open too, and see and cancel what is any owner's.
    strict_model
        A request for a model that is not served here is refused; otherwise any name is served.
    unknown_fields
        What becomes of a body's fields that have no effect here.
    tags
        Words about the model for its clients, without any effect.
    drain
        Seconds that live requests may go on after SIGTERM.
    drain_delay
        Seconds before that, in which everything is served as ever, but ``/health`` says that it drains.
    sampling
        What a request gets where it leaves a parameter open; its seed is not looked at.
    seed
        Seed of requests that name none; None draws one for each.
    n_predict
        Most tokens of an answer, whatever its request asks for; None sets no limit.
    chat_template
        Jinja, or a name that llama.cpp has for a template, to use instead of the model's own.
    chat
        What holds for conversations.
    sse_ping_interval
        Seconds of silence after which a stream gets a comment; 0: never.
    limits
        What one client can ask of the server.
    cors_origins
        Origins whose pages may use the server; ``*`` for all, ``localhost`` for this machine's, ``SCHEME://*`` for
        those of a scheme.
    bound_to
        Names that the server listens on.
    allowed_hosts
        Further names of the server; ``*`` for all.
    storage
        Where responses are stored; None: nowhere.
    otel
        What an observer needs to trace requests is kept with them.
    expose_prompts
        The feed of events shows prompts and answers.
    slots, metrics, ui
        Whether ``/slots`` (which shows prompts), ``/metrics`` and the live page are there.
    replica
        What answers say of which server they are; None: nothing.
    fleet
        The other servers that this one works with; None: none.
    verbose
        Whether answers tell what the model has read and written, where a request does not say.
    """

    engine: EngineConfig
    supersede: Literal["client-ip", "user", "session"] | None = None
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
    seed: int | None = None
    n_predict: int | None = None
    chat_template: str | None = None
    chat: ChatDefaults = field(default_factory=ChatDefaults)
    sse_ping_interval: float = 15.0
    limits: Limits = field(default_factory=Limits)
    cors_origins: tuple[str, ...] = ()
    bound_to: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    storage: Storage | None = field(default_factory=Storage)
    otel: bool = False
    expose_prompts: bool = False
    slots: bool = True
    metrics: bool = True
    ui: bool = True
    replica: str | None = None
    fleet: FleetSettings | None = None
    verbose: bool = False

    @property
    def shared(self) -> bool:
        """True if there are several owners, the administrator among them, who must not learn of each other."""
        return len({key.owner for key in self.api_keys}) + bool(self.admin_api_keys) > 1

    def served_as(self) -> HostNames | None:
        """The names under which requests are served; None: under any.

        A page whose name was rebound to this server has no key: where one is asked for, names are checked on demand.
        """
        if EVERY in self.allowed_hosts or (self.api_keys and not self.allowed_hosts):
            return None
        return HostNames((*self.bound_to, *self.allowed_hosts))

    def request_defaults(self) -> SamplingParams:
        """Return the values of the parameters that the next request leaves open."""
        return self.sampling.with_seed(secrets.randbits(32) if self.seed is None else self.seed)

    def limited(self, max_tokens: int | None) -> int | None:
        """The most tokens that an answer may have for which its request allows `max_tokens`."""
        limits = [limit for limit in (max_tokens, self.n_predict) if limit is not None]
        return min(limits, default=None)
