"""The sender's identity, which is in every message between servers, and in every reply."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pyllmcancel.server.fleet.addresses import NAME

KEY_HEADER = "X-Peer-Key"


class Identity(BaseModel):
    """A server, from its start to its end.

    Attributes
    ----------
    nonce
        A number drawn at the server's start: a server that receives its own has found itself.
    name
        The server's name in lists.
    version
        The version of pyllmcancel.
    model
        The model's name and size; None before it is loaded.
    clock_us
        The server's clock when it sent this, in microseconds since the epoch.
    """

    # Fields that a later version adds are ignored: it is refused as another version anyway.
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    nonce: str = Field(min_length=16, max_length=64)
    name: str = Field(pattern=f"^{NAME.pattern}$")
    version: str = Field(max_length=100)
    model: str | None = Field(max_length=10_000)
    clock_us: int = Field(ge=0, lt=1 << 63)

    def differs(self, other: Identity) -> str | None:
        """Return why the two do not work together: how `other` differs from this server; None if they do."""
        if other.version != self.version:
            return f"is version {other.version}, not {self.version}"
        if other.model != self.model:
            return f"serves {other.model}, not {self.model}"
        if other.name == self.name and other.nonce != self.nonce:
            return f"is called {other.name}, as this server is: --replica gives another name"
        return None


class Envelope(BaseModel):
    """The body of a post to a peer. Without a message it is a greeting."""

    model_config = ConfigDict(extra="ignore")

    sender: Identity
    message: dict[str, Any] | None = None


class ReplyEnvelope(BaseModel):
    model_config = ConfigDict(extra="ignore")

    sender: Identity
    reply: dict[str, Any] | None = None
