"""How the server is set up. Light to import: the command line reads its options before it imports the server."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.limits import Limits

if TYPE_CHECKING:
    from pyllmcancel.config import EngineConfig


ADMIN = "admin"  # the owner of the administrator's own requests


class ApiKey(NamedTuple):
    """A key, and the name of its owner; several may be one owner's."""

    owner: str
    key: str

    @classmethod
    def unnamed(cls, key: str) -> ApiKey:
        """One whose owner is named by a digest of it."""
        return cls(f"key-{hashlib.sha256(key.encode()).hexdigest()[:12]}", key)


class Certificate(NamedTuple):
    """PEM files for HTTPS."""

    key: Path
    certificate: Path


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
        Addresses and networks whose ``X-Forwarded-For`` names the client.
    api_keys
        Any of them opens; empty: no key is asked for.
    admin_api_keys
        These open too, and see and cancel what is any owner's.
    strict_model
        A request for a model that is not served here is refused; otherwise any name is served.
    tags
        Words about the model for its clients, without any effect.
    drain
        Seconds that live requests may go on after SIGTERM.
    sampling
        What a request gets where it leaves a parameter open; its seed is not looked at.
    seed
        Seed of requests that name none; None draws one for each.
    n_predict
        Most tokens of an answer, whatever its request asks for; None sets no limit.
    chat_template
        Jinja2 to use instead of the model's own.
    sse_ping_interval
        Seconds of silence after which a stream gets a comment; 0: never.
    limits
        What one client can ask of the server.
    cors_origins
        Origins whose pages may use the server; ``*`` for all, ``localhost`` for this machine's.
    slots, metrics, ui
        Whether ``/slots`` (which shows prompts), ``/metrics`` and the live page are there.
    """

    engine: EngineConfig
    supersede: Literal["client-ip", "user", "session"] | None = None
    supersede_chats: bool = False
    trusted_proxies: tuple[str, ...] = ()
    api_keys: tuple[ApiKey, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    strict_model: bool = False
    tags: tuple[str, ...] = ()
    drain: float = 5.0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    n_predict: int | None = None
    chat_template: str | None = None
    sse_ping_interval: float = 15.0
    limits: Limits = field(default_factory=Limits)
    cors_origins: tuple[str, ...] = ()
    slots: bool = True
    metrics: bool = True
    ui: bool = True

    @property
    def shared(self) -> bool:
        """Whether there are several owners, the administrator among them, who must not learn of each other."""
        return len({key.owner for key in self.api_keys}) + bool(self.admin_api_keys) > 1

    def request_defaults(self) -> SamplingParams:
        """What the next request gets where it leaves a parameter open."""
        return self.sampling.with_seed(secrets.randbits(32) if self.seed is None else self.seed)

    def limited(self, max_tokens: int | None) -> int | None:
        """The most tokens that an answer may have for which its request allows `max_tokens`."""
        limits = [limit for limit in (max_tokens, self.n_predict) if limit is not None]
        return min(limits, default=None)
