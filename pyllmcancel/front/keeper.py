"""The processes of all models: they are started and ended as the `Roster` says, and the requests wait for them."""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pyllmcancel.errors import UsageError
from pyllmcancel.front.child import Write
from pyllmcancel.front.fits import DoesNotFit, Fits
from pyllmcancel.front.places import Places
from pyllmcancel.front.replica import Claim, Replica, State, Ticket
from pyllmcancel.front.roster import Action, Admit, Measure, Refuse, Roster, Start, Stop
from pyllmcancel.front.spec import Catalog, Command, Spec
from pyllmcancel.front.upstream import Address
from pyllmcancel.front.worker import ModelProcess, RemoteWorker, Worker, why_ended
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.timer import Timer
from pyllmcancel.system import memory_in_use

if TYPE_CHECKING:
    from pyllmcancel.front.remotes import Remotes

logger = logging.getLogger("pyllmcancel.front")

SILENCE_SECONDS = 10.0
GRACE_SECONDS = 15.0  # after its drain, until a process that does not end is killed
SHUTDOWN = "the server is shutting down", "shutdown"


class Keeper:
    """Used in the event loop only."""

    def __init__(
        self,
        catalog: Catalog,
        read: Callable[[], Catalog],  # the list of models; in a thread, again whenever the list may have changed
        command: Command,
        *,
        folder: Path,  # of the processes' sockets, which nobody else may enter; removed in the end
        roster: Roster,
        drain: float,  # the seconds that a process has for its live requests
        write: Write,  # called with each line of the processes' logs
        key: str,  # by which the processes know this one
        check: Callable[[Path], None] = lambda _path: None,  # in a thread; OSError or UsageError: a file is no model
        silence: float = SILENCE_SECONDS,  # without an answer, until others go on with the answers of a stuck process
        autoload: bool = True,  # a request loads its model
        idle_loads: bool = False,  # an idle one does, too
    ) -> None:
        self.catalog = catalog
        self.roster = roster
        self.processes: dict[str, Worker] = {}  # those of workers elsewhere, too
        self.remotes: Remotes | None = None  # which find the latter
        self.autoload, self.idle_loads = autoload, idle_loads
        self.starting = set[str]()  # models that are to be loaded before this process is ready
        self.created = int(time.time())
        self._read = read
        self._command = command
        self._folder = folder
        self._drain = drain
        self.silence = silence
        self._leaving: dict[Worker, bool] = {}  # workers whose requests others are to take, and whether each is silent
        self.write = write
        self.key = key
        self._places = Places()
        self._n_started = 0
        self._fits = Fits(command, folder, check)
        self._measuring = set[asyncio.Task[None]]()
        self._timer = Timer()
        self.closing = False
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()  # of one change; the next one has another event

    def start(self) -> None:
        """Load the models that are to be there from the start."""
        for why in self.catalog.passed_over:
            logger.warning("%s", why)
        self._list()
        for spec in self.catalog.specs.values():
            if spec.pinned or spec.starts:
                self.replica(spec.name).ask(time.monotonic())
                self.starting.add(spec.name)
        self._act()

    # -- the list -----------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        for name, spec in self.catalog.workers.items():
            self.roster.add(name, spec.size, of=spec.name, pinned=spec.pinned, idle_after=spec.idle_after)
        for model in self.roster.replicas.values():
            model.is_listed &= model.is_remote or model.name in self.catalog.workers

    async def reread(self, *, removes: bool = False) -> None:
        """Read the list again, for new models. With `removes`, models that are not listed any more, or otherwise, are
        unloaded. A list that cannot be read leaves the former one valid.
        """
        async with self._reading:
            try:
                catalog = await asyncio.to_thread(self._read)
                if not removes:
                    self.catalog.add_new(catalog)
            except (OSError, UsageError, UnicodeError) as error:
                logger.warning("the list of models cannot be read again, and the former one stays valid: %s", error)
                if removes:
                    raise ApiError(409, f"the list cannot be read again: {error}", code="invalid_list") from None
                return
        before = self.catalog.specs
        if removes:
            catalog.serve_all_of(self.catalog)
            self.catalog = catalog
        self._list()
        for name, old in before.items():
            for one in self.local(old) if self.catalog.specs.get(name) != old else ():
                self.roster.unload(one, f"the model {name} has been changed or removed")
        self._act()

    def next_change(self) -> asyncio.Event:
        """Return what is set when a state, a load's progress, or a waiting request changes for the next time."""
        return self._changed

    def notify(self) -> None:
        """Wake those that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def replica(self, name: str) -> Replica:
        return self.roster.replicas[name]

    def workers(self, model: str) -> list[Replica]:
        """Return a model's processes, as they are listed; those that it had, if it is not listed any more."""
        workers = self.roster.workers(model)
        return [one for one in workers if one.is_listed] or workers

    def local(self, spec: Spec) -> list[Replica]:
        """Return the model's processes, which are started and ended here."""
        return [one for one in self.roster.workers(spec.name) if not one.is_remote]

    def serving(self, spec: Spec) -> Worker | None:
        """Return a worker of the model that serves; None if there is none."""
        chosen = self._places.choose(self.workers(spec.name), Claim(spec.name))
        return self.processes.get(chosen.name) if chosen.state is State.LOADED else None

    @property
    def health(self) -> Literal["ok", "loading", "draining"]:
        """The word of ``/health``."""
        return "draining" if self.closing else "loading" if self.starting or not self.catalog.specs else "ok"

    def ready(self) -> list[Worker]:
        """Return the workers that serve."""
        return [one for one in self.processes.values() if one.is_ready]

    @property
    def n_slots(self) -> int:
        """The number of requests that can be computed at once now."""
        return sum(one.slots for one in self.roster.replicas.values() if one.state is State.LOADED)

    # -- requests -----------------------------------------------------------------------------------------------------

    def want(self, claim: Claim) -> Ticket:
        """Return a request's ticket. `drop` must follow."""
        chosen = self._places.choose(self.workers(claim.model), claim)
        ticket = self.roster.want(chosen, time.monotonic(), claim)
        self._places.note(ticket)
        ticket.admitted = asyncio.get_running_loop().create_future()
        if self.closing:
            self._refuse(ticket, *SHUTDOWN)
        self._act()
        return ticket

    def drop(self, ticket: Ticket, keep: float | None = None) -> None:
        """The request has ended, or its client has left. Idempotent."""
        if not ticket.admitted.cancel() and not ticket.admitted.cancelled():
            ticket.admitted.exception()  # it was raised, or nobody waits for it any more
        self._places.drop(ticket)
        ticket.drop(time.monotonic(), keep=keep)
        self._act()

    def has_other(self, claim: Claim) -> bool:
        """Return whether a process takes the request, other than those that did not."""
        return any(one.is_open and one.name not in claim.avoids for one in self.roster.workers(claim.model))

    def load(self, spec: Spec) -> None:
        for one in self.local(spec):
            one.ask(time.monotonic())
        self._act()

    def unload(self, spec: Spec) -> None:
        for one in self.local(spec):
            self.roster.unload(one, f"the model {spec.name} was unloaded")
        self._act()

    def restart(self, spec: Spec) -> None:
        """Start the model's processes anew, one after the other, each when its requests have ended."""
        self.roster.renew(spec.name)
        self._act()

    # -- processes ----------------------------------------------------------------------------------------------------

    def has_answered(self, worker: Worker, slots: int) -> None:
        replica = self.replica(worker.name)
        if replica.state is State.LOADING:
            replica.loaded(time.monotonic(), slots)
            replica.lines = []
            logger.info("%s is loaded after %.1f s", worker.name, replica.load_seconds)
        self._leaving.pop(worker, None)
        replica.is_stuck = False
        self._measure(worker)
        self._act()

    def is_stuck(self, worker: Worker) -> None:
        replica = self.replica(worker.name)
        if not replica.is_stuck:
            logger.warning("%s does not answer", worker.name)
        replica.is_stuck = True
        if time.monotonic() - worker.answered_at > self.silence:
            self._leaving[worker] = True
        self._act()

    def _measure(self, process: Worker) -> None:
        taken = 0 if process.pid is None else memory_in_use(1, process.pid)
        # A mapped file is read when it is used, and so are cells.
        spec = self.catalog.workers.get(process.name)
        expected = 0 if spec is None else max(spec.size, self._fits.known(spec))
        self.replica(process.name).need = max(taken or 0, expected)

    def has_ended(self, process: ModelProcess, status: int) -> None:
        name, model = process.name, self.replica(process.name)
        self.processes.pop(name, None)
        self._leaving.pop(process, None)
        if self.closing:
            self.notify()
            return
        was_loading, why = model.state is State.LOADING, ""
        if model.state is not State.ENDING:
            why, reason = why_ended(name, status, process.lines, was_loading=was_loading)
            logger.error("%s", reason)
            model.lines = list(process.lines)
            why = reason if was_loading else why  # once it serves, its lines name requests of all owners
        # Its own status says that it has told the reason, which another start would find again.
        self.roster.ended(model, time.monotonic(), why, hopeless=was_loading and status > 0)
        self._act()

    # -- workers elsewhere --------------------------------------------------------------------------------------------

    def has_come(self, worker: RemoteWorker, names: list[str], slots: int) -> None:
        """Let a worker elsewhere serve the model of these names."""
        spec = self.catalog.serve(names)
        former = self.processes.get(worker.name)
        if isinstance(former, RemoteWorker):
            is_free = former is worker or not former.is_ready
        else:
            is_free = bool(worker.name) and worker.name not in self.roster.replicas
        if not is_free:
            worker.name = worker.shown
        worker.model = spec.name
        self.processes[worker.name] = worker
        self.roster.came(worker.name, spec.name, time.monotonic(), slots)
        logger.info("%s serves %s", worker.shown, spec.name)
        self._act()

    def is_away(self, worker: RemoteWorker, why: str, *, silent: bool) -> None:
        self._leaving[worker] = silent
        why = f"the worker {worker.replica} cannot be reached: {why}"
        self.replica(worker.name).went(time.monotonic(), why)
        self._act()

    def is_forgotten(self, worker: RemoteWorker) -> None:
        if self.processes.get(worker.name) is worker:
            del self.processes[worker.name]
            if self.replica(worker.name).state is State.LOADED:
                self.is_away(worker, "it has left", silent=False)
            self.roster.forget(self.replica(worker.name))
            self._act()
        if self._leaving.pop(worker, False):  # nothing is to be expected of it
            worker.give_away(silent=True)

    # -- acting -------------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Do what the roster says, and come back when it says so."""
        self.notify()
        if self.closing:
            return
        self._place_again()
        self._give_away()
        for action in self.roster.decide(time.monotonic()):
            try:
                self._do(action)
            except Exception:  # of one model: what is to be done for the others is lost if it is not done now
                logger.exception("this could not be done: %s", action)
        self.starting = {name for name in self.starting if self.roster.is_coming(name)}
        self._timer.stop()
        if self.roster.next_at < math.inf:
            self._timer.start(max(0.0, self.roster.next_at - time.monotonic()), self._act)

    def _place_again(self) -> None:
        """Send requests that wait for a process to another one of their model that takes them."""
        for one in self.roster.replicas.values():
            for ticket in list(one.waiting) if not one.is_open else ():
                chosen = self._places.choose(self.roster.workers(one.of), ticket.claim)
                if chosen.is_open:
                    ticket.move(chosen)
                    self._places.note(ticket)

    def _give_away(self) -> None:
        """Have others go on with the requests of workers that leave, or do not answer, where there are any now."""
        for worker, silent in list(self._leaving.items()):
            if self.has_other(Claim(worker.model, avoids=frozenset({worker.name}))):
                del self._leaving[worker]
                worker.give_away(silent=silent)

    def _do(self, action: Action) -> None:
        match action:
            case Start(name):
                self._start(name)
            case Measure(name):
                task = asyncio.create_task(self._measured_first(self.replica(name)), name=f"measure {name}")
                self._measuring.add(task)
                task.add_done_callback(self._measuring.discard)
            case Stop(name, kill):
                logger.info("the load of %s is cancelled: nobody waits for it" if kill else "%s is unloaded", name)
                process = self.processes[name]
                assert isinstance(process, ModelProcess)
                process.stop(kill=kill, patience=self._drain + GRACE_SECONDS)
            case Admit(ticket):
                if not ticket.admitted.done():
                    ticket.admitted.set_result(self.processes[ticket.replica.name])
            case Refuse(ticket, why):
                self._refuse(ticket, why, "worker_unreached" if ticket.replica.is_remote else "model_not_loaded")

    def _start(self, name: str) -> None:
        self._n_started += 1
        socket = self._folder / f"m{self._n_started}.sock"
        try:
            spec = self.catalog.workers[name]
            made = self._command(spec, socket)
        except Exception as error:
            logger.exception("%s cannot be started", name)
            why = f"the model {name} could not be started: {error}"
            self.roster.ended(self.replica(name), time.monotonic(), why, hopeless=True)
            asyncio.get_running_loop().call_soon(self._act)
            return
        logger.info("%s is being loaded", name)
        self.processes[name] = ModelProcess(spec, Address(self.key, socket), *made, self)

    async def _measured_first(self, replica: Replica) -> None:
        try:
            need = await self._fits.need(self.catalog.workers[replica.name])
        except DoesNotFit as error:
            why, replica.lines = error.args
            logger.error("%s", why)
            self.roster.unfit(replica, why, time.monotonic())
        except Exception:
            logger.exception("%s could not be measured, and is loaded without", replica.name)
            replica.fits()
        else:
            replica.fits(need)
        self._act()

    @staticmethod
    def _refuse(ticket: Ticket, why: str, code: str) -> None:
        if not ticket.admitted.done():
            ticket.admitted.set_exception(ApiError(503, why, "server_error", code=code))

    async def close(self) -> None:
        """Refuse the requests that wait, and end all processes after their drain. Idempotent."""
        self.closing = True
        self.notify()
        self._timer.stop()
        for ticket in [ticket for one in self.roster.replicas.values() for ticket in one.waiting]:
            self._refuse(ticket, *SHUTDOWN)
        for task in self._measuring:
            task.cancel()
        processes = self._local()
        for process in processes:
            kill = self.replica(process.name).state is State.LOADING
            process.stop(kill=kill, patience=self._drain + GRACE_SECONDS)
        await asyncio.gather(*(process.wait() for process in processes), *self._measuring, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)  # now: uvicorn ends this process by its signal

    def hurry(self) -> None:
        """End the drains: the second signal."""
        for process in self._local():
            process.stop(patience=GRACE_SECONDS, again=True)

    def _local(self) -> list[ModelProcess]:
        return [one for one in self.processes.values() if isinstance(one, ModelProcess)]
