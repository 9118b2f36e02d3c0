"""One other server: whether it is there and one of us, and messages to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from enum import Enum
from typing import TYPE_CHECKING

import httpx

from pyllmcancel.server.fleet.addresses import fitting
from pyllmcancel.server.fleet.identity import Envelope
from pyllmcancel.server.fleet.messages import AskResponse, Follow, ListRequests, ListSessions, Superseding, TakeSnapshot
from pyllmcancel.server.fleet.peer_client import FAILURES, Declined, NoAnswer, PeerClient, reason_of
from pyllmcancel.server.fleet.slots import TOO_MUCH_AT_ONCE, PeerSlots
from pyllmcancel.server.fleet.transport import Answer

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.addresses import Address
    from pyllmcancel.server.fleet.identity import Identity
    from pyllmcancel.server.fleet.messages import Message

logger = logging.getLogger("pyllmcancel.fleet")

GREET_EVERY, SEEK_EVERY = 5.0, 1.0  # seconds between greetings: of a peer that answers, and of one that does not
MAX_LOGGED_REASONS = 10  # reasons that are logged
HURRIED = 0.9  # share of the deadline: a peer that had less time than this does not count as silent
MAX_SKEW = 0.1  # seconds between two clocks, without a warning


class Standing(Enum):
    """The standing of a peer. Only a READY peer gets questions."""

    UNKNOWN = "has not been reached yet"
    LOADING = "is loading its model"  # a loading peer has nothing to ask for
    OWN = "is this server"
    SAME = "is a peer that is known by another address"
    READY = "is there"
    SILENT = "does not answer"
    REFUSED = "is not one of these servers"


class Peer:
    """One other server. Used in the event loop only.

    Parameters
    ----------
    me
        Returns this server's present identity.
    beside
        Returns the other peers that are there.
    """

    def __init__(
        self,
        address: Address,
        *,
        client: httpx.AsyncClient,
        key: str | None,
        me: Callable[[], Identity],
        beside: Callable[[Peer], Sequence[Peer]],
        deadline: float,
    ) -> None:
        self.address = address
        self.standing = Standing.UNKNOWN
        self.identity: Identity | None = None
        self._why = ""
        self._changed = asyncio.Event()  # set at the next change of its standing
        self._told = set[str]()  # the reasons that were logged since the peer was last there
        # The start of the last exchange in which the peer answered; on the event loop's clock.
        self._heard_at = float("-inf")
        self._doubted: tuple[str, float] | None = (
            None  # its nonce, and when another one was first seen to have its name
        )
        self._client = PeerClient(address, client, key)
        self._me = me
        self._beside = beside
        self._deadline = deadline
        self.met = asyncio.Event()  # set after the first greeting, whatever its result
        self._wake = asyncio.Event()
        self._skew_told = False
        self._lists, self._cancels = PeerSlots(), PeerSlots()

    @property
    def name(self) -> str:
        return fitting(self.address.url.partition("://")[2]) if self.identity is None else self.identity.name

    @property
    def counts(self) -> bool:
        """True if the peer may have requests that are missed when it does not answer."""
        return self.standing not in (Standing.OWN, Standing.SAME, Standing.LOADING)

    @property
    def why(self) -> str:
        """The reason why the peer is not there."""
        return self._why or self.standing.value

    async def until(self, *, there: bool) -> None:
        """Wait until the peer is there, or is not."""
        while (self.standing is Standing.READY) is not there:
            await self._changed.wait()

    async def keep_looking(self) -> None:
        """Greet the peer from time to time, to notice when it comes, goes or changes."""
        while True:
            self._wake.clear()
            try:
                await self._exchange(None)
            except NoAnswer:
                pass
            except Exception:
                logger.exception(
                    "%s could not be greeted, and is greeted again", self.name
                )  # and is greeted again: this task must not end
            self.met.set()
            steady = self.standing in (Standing.READY, Standing.OWN, Standing.SAME)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), GREET_EVERY if steady else SEEK_EVERY)

    def look_now(self) -> None:
        """Greet the peer at once."""
        self._wake.set()

    async def ask(self, message: Message) -> Answer:
        """Send a question; does not raise. A peer that did not answer the last time is not waited for again."""
        if isinstance(message, Superseding):  # these messages go one at a time, for all owners
            return await self._ask(message)
        # A cancel does not wait behind lists, not even its own owner's.
        turns = self._lists if is_long(message) else self._cancels
        loop = asyncio.get_running_loop()
        until = loop.time() + self._deadline  # the deadline of its turn and its answer together
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(turns.of(getattr(message, "owner", None), self._deadline))
            except TimeoutError:
                return Answer(self.name, None, TOO_MUCH_AT_ONCE)
            if self.standing is Standing.LOADING:
                # The peer may have loaded, and accepted requests, since it was greeted.
                with suppress(NoAnswer):
                    await self._exchange(None, until - loop.time())
            return await self._ask(message, until - loop.time())

    async def _ask(self, message: Message, patience: float | None = None) -> Answer:
        if self.standing is not Standing.READY:
            return Answer(self.name, None, self.why, left_out=self.standing is Standing.REFUSED)
        try:
            reply = await self._exchange(message, patience)
        except NoAnswer as error:
            # Not at once: a peer that answers greetings but no messages would delay each message of a conversation.
            asyncio.get_running_loop().call_later(SEEK_EVERY, self.look_now)
            return Answer(self.name, None, str(error))
        return Answer(self.name, reply)

    async def _exchange(self, message: Message | None, patience: float | None = None) -> dict[str, object] | None:
        """Greet the peer, or send it a message; NoAnswer if there is no reply in `patience` seconds, or by the
        deadline.
        """
        said = Envelope(sender=self._me(), message=None if message is None else message.model_dump(mode="json"))
        began, began_at = time.time(), asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._deadline if patience is None else patience):
                answered = await self._client.send(said)
        except (*FAILURES, NoAnswer) as error:
            if message is not None and isinstance(error, Declined):
                raise  # one client's questions must not keep the others' news and cancels from the peer
            if isinstance(message, AskResponse) and isinstance(error, NoAnswer | TimeoutError | httpx.ReadTimeout):
                # The time of the answer, and its success, depend on the client's stored responses.
                raise Declined(self.reason_of(error)) from None
            if patience is not None and patience < HURRIED * self._deadline and isinstance(error, TimeoutError):
                raise NoAnswer(TOO_MUCH_AT_ONCE) from None  # it had hardly any time, which is no sign of silence
            self._stand(Standing.SILENT, self.reason_of(error))
            raise NoAnswer(self._why) from None
        self._heard_at = began_at
        self._meet(answered.sender)
        self._compare_clocks(answered.sender, began, time.time())
        if message is None:
            return None
        if self.standing is not Standing.READY or answered.reply is None:
            raise NoAnswer(self._why or "gave an invalid answer")
        return answered.reply

    def follow(self, last_event_id: str | None) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Return the peer's feed, in pieces, from after this event on; NoAnswer or one of FAILURES if there is none."""
        message = Follow(last_event_id=last_event_id).model_dump(mode="json")
        return self._client.follow(Envelope(sender=self._me(), message=message), self._deadline)

    def reason_of(self, error: Exception) -> str:
        """Return why there is no answer, in words."""
        return reason_of(error, self._deadline)

    def _meet(self, other: Identity) -> None:
        me = self._me()
        self.identity = other
        if other.nonce == me.nonce:
            self._stand(Standing.OWN)
        elif other.model is None:
            self._stand(Standing.LOADING)
        elif any(known.identity and known.identity.nonce == other.nonce for known in self._beside(self)):
            self._stand(Standing.SAME)
        elif (why := me.differs(other)) is not None:
            self._stand(Standing.REFUSED, why)
        elif (namesake := self._namesake_of(other)) is not None:
            why = f"is called {other.name}, as {namesake.address.url} is: --replica gives another name"
            self._stand(Standing.REFUSED if self._is_there_beside(other, namesake) else Standing.SILENT, why)
        else:
            self._doubted = None
            self._stand(Standing.READY)

    def _namesake_of(self, other: Identity) -> Peer | None:
        return next((one for one in self._beside(self) if one.identity and one.identity.name == other.name), None)

    def _is_there_beside(self, other: Identity, namesake: Peer) -> bool:
        """Return whether a namesake has answered since this peer was met.

        The namesake may be this peer itself, from before it got a new address. Until that is known, this peer counts as
        silent, and messages for it wait.
        """
        if self._doubted is None or self._doubted[0] != other.nonce:
            self._doubted = other.nonce, asyncio.get_running_loop().time()
            namesake.look_now()
        return namesake._heard_at > self._doubted[1]

    def _stand(self, standing: Standing, why: str = "") -> None:
        """Note the peer's standing. Changes are logged, but each reason once: a network that is down has several in
        turn.
        """
        if (standing, why) == (self.standing, self._why):
            return
        self.standing, self._why = standing, why
        self._changed.set()
        self._changed = asyncio.Event()
        match standing:
            case Standing.READY:
                self._told.clear()
                logger.info("the peer %s is connected: %s", self.address.url, self.name)
            case Standing.REFUSED:
                logger.error("the peer %s %s: it is left out", self.address.url, why)
            case Standing.SILENT if why not in self._told and len(self._told) < MAX_LOGGED_REASONS:
                self._told.add(why)
                logger.warning("the peer %s (%s) is not reached: %s", self.address.url, self.name, why)
            case _:
                pass

    def _compare_clocks(self, other: Identity, began: float, ended: float) -> None:
        skew = other.clock_us / 1e6 - (began + ended) / 2
        apart = abs(skew) > MAX_SKEW + (ended - began) / 2
        if apart and not self._skew_told:
            text = "the clock of %s is %.3f s %s: requests of one key that come closer together may be ordered wrongly"
            logger.warning(text, self.name, abs(skew), "ahead" if skew > 0 else "behind")
        self._skew_told = apart


def is_long(message: Message) -> bool:
    """Return whether the answer may take a while to make and to read."""
    if isinstance(message, AskResponse):
        return message.asked != "cancel"
    return isinstance(message, ListRequests | ListSessions | TakeSnapshot)
