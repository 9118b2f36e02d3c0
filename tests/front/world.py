"""The router over fake processes, which a test holds in their loads and lets die."""

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.errors import UsageError
from pyllmcancel.front.app import create_router_app
from pyllmcancel.front.keeper import Keeper
from pyllmcancel.front.link import FrontLink
from pyllmcancel.front.place import Place
from pyllmcancel.front.remotes import Remotes, Resolve
from pyllmcancel.front.replica import State
from pyllmcancel.front.requests import FrontRequests
from pyllmcancel.front.roster import Roster
from pyllmcancel.front.spec import Catalog, Spec
from pyllmcancel.server.config import ApiKey, ServerConfig
from tests.support.http_asgi import LIMIT, Clients, Exchange

FAKE = Path(__file__).parents[1] / "support" / "fake_model_server.py"
COMPLETIONS = "/v1/completions"
# Two owners and an administrator, the options of a router that knows them, and their headers.
KEYS: dict[str, Any] = {
    "api_keys": (ApiKey("ann", "key-a"), ApiKey("bob", "key-b")),
    "admin_api_keys": ("key-admin",),
}
ANN, BOB, ADMIN = ({"authorization": f"Bearer {key}"} for key in ("key-a", "key-b", "key-admin"))
MODEL = b"a model"  # the content of a model's file, where it has one


class RouterWorld(Clients):
    """A router, its processes, and its clients. Options are Roster's, Spec's by model, Remotes', and ServerConfig's."""

    def __init__(
        self,
        folder: Path,
        *names: str,
        most: float = math.inf,
        room: float = math.inf,
        autoload: bool = True,
        engine: EngineConfig | None = None,
        loads: tuple[str, ...] = (),
        specs: dict[str, dict[str, Any]] | None = None,
        check: Callable[[Path], None] | None = None,
        places: tuple[Place, ...] | None = None,
        resolve: Resolve | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder
        defaults: dict[str, Any] = {"path": None, "options": ()}
        self.specs = [Spec(name=name, **defaults | (specs or {}).get(name, {})) for name in names]
        self.hold_loads(*loads)
        self.sockets = folder / "s"
        self.sockets.mkdir(mode=0o700)
        self.log: list[str] = []
        config = ServerConfig(engine=engine or EngineConfig(), **options)
        its = {
            "folder": self.sockets,
            "roster": Roster(most, room),
            "drain": 0.5,
            "write": self.log.append,
            "key": "key",
            "autoload": autoload,
        }
        self.keeper = Keeper(Catalog(self.specs), self.read, self.command, **its, check=check or self.check)
        if places is not None:
            self.keeper.remotes = Remotes(self.keeper, places, key="key", resolve=resolve)
        self.app = create_router_app(config, self.keeper)
        self.exchanges: list[Exchange] = []

    def read(self) -> Catalog:
        return Catalog(self.specs)

    @staticmethod
    def check(path: Path) -> None:
        """Raise as the command line's own check does, which lies above the router."""
        if path.read_bytes() != MODEL:
            raise UsageError(f"{path.name} is no model")

    def command(self, spec: Spec, socket: Path) -> tuple[list[str], dict[str, str]]:
        command = [sys.executable, "-I", "-S", str(FAKE), "--host", str(socket), "--alias", spec.worker]
        return command, {"CONTROL": str(self.folder)}

    # -- the processes ------------------------------------------------------------------------------------------------

    def hold_loads(self, *names: str) -> None:
        for name in names:
            (self.folder / f"{name}.loads").touch()

    def let_load(self, name: str) -> None:
        (self.folder / f"{name}.loads").unlink()

    def let_die(self, name: str, status: int) -> None:
        (self.folder / f"{name}.dies").write_text(str(status))

    def log_of(self, name: str) -> list[str]:
        path = self.folder / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []

    def starts(self, name: str) -> int:
        return sum(line.startswith("start") for line in self.log_of(name))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for what processes do, which no event of this one tells."""
        async with asyncio.timeout(LIMIT):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def until_state(self, name: str, state: State) -> None:
        await self.until(lambda: self.keeper.replica(name).state is state)

    def pid(self, name: str) -> int:
        return self.keeper.processes[name].pid

    # -- clients ------------------------------------------------------------------------------------------------------

    def complete(self, model: str | None, request_id: str | None = None, **fields: Any) -> Exchange:
        headers = {} if request_id is None else {"x-request-id": request_id}
        named = {} if model is None else {"model": model}
        return self.begin("POST", COMPLETIONS, {"prompt": "hello"} | named | fields, headers=headers)

    async def streaming(self, model: str, request_id: str | None = None, **fields: Any) -> Exchange:
        """Begin a stream, and wait for its first event."""
        stream = self.complete(model, request_id, stream=True, **{"until": "never"} | fields)
        await stream.next_event()
        return stream

    async def waiting(self, model: str | None, request_id: str, **fields: Any) -> Exchange:
        """Begin a completion, and wait until it waits for its model's load."""
        exchange = self.complete(model, request_id, **fields)
        await self.waits(request_id)
        return exchange

    async def load(self, model: str) -> None:
        await self.post("/models/load", {"model": model})
        await self.until_state(model, State.LOADED)

    async def ended(self, request_id: str) -> tuple[str, str | None]:
        """Return how a request has ended."""
        told = (await self.get(f"/v1/requests/{request_id}")).json()
        return told["status"], told["cancel_reason"]

    async def status(self, name: str) -> dict[str, Any]:
        listed = (await self.get("/v1/models")).json()["data"]
        return next(one for one in listed if one["id"] == name)["status"]

    async def waits(self, request_id: str) -> None:
        live = self.requests.registry.requests
        await self.until(lambda: any((one.id, one.status) == (request_id, "loading") for one in live()))

    @property
    def requests(self) -> FrontRequests:
        return self.app.state.router.requests


@asynccontextmanager
async def open_router(folder: Path, *names: str, **options: Any) -> AsyncIterator[RouterWorld]:
    """A router that is closed in the end, when no process of its is left."""
    async with opened(RouterWorld(folder, *names, **options)) as world:
        yield world


@asynccontextmanager
async def opened(world: RouterWorld) -> AsyncIterator[RouterWorld]:
    pids: list[int] = []
    async with asyncio.timeout(4 * LIMIT), world.app.router.lifespan_context(world.app):
        try:
            yield world
        finally:
            pids = [process.pid for process in world.keeper.processes.values() if process.pid is not None]
            await world.leave_all()
    assert not world.keeper.processes
    assert not any(map(is_there, pids))
    assert not world.sockets.exists()
    assert not world.requests.registry.requests()
    assert world.requests.registry.load == (0, 0)
    assert not [model for model in world.keeper.roster.replicas.values() if model.waiting or model.running]


def sending(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The event is set when a request has been sent to a process, which may have read nothing of it."""
    begin, sent = FrontLink.begin, asyncio.Event()

    async def begun(*given: Any) -> FrontLink:
        exchange = await begin(*given)
        sent.set()
        return exchange

    monkeypatch.setattr("pyllmcancel.front.relay.FrontLink.begin", begun)
    return sent


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
