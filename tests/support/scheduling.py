"""A scheduler without an engine, for tests of what it decides."""

from typing import Any, NamedTuple

from pyllmcancel.config import EngineConfig
from pyllmcancel.requests.request import Choice
from pyllmcancel.scheduling.scheduler import Scheduler
from pyllmcancel.step import StepItem
from tests.support.bare_requests import bare_request
from tests.support.fake_native import Context, Model


class Part(NamedTuple):
    """One sequence's part in a step without drafts."""

    seq: int
    n_tokens: int


class Bench:
    """A scheduler on a fake context, and steps that are computed when the test says so."""

    def __init__(
        self,
        *,
        kind: str = "attention",
        parallel: int = 2,
        n_ctx: int = 512,
        n_batch: int = 16,
        gpu: bool = False,
        itl_target: float = 1e9,
        kv_unified: bool = True,
    ) -> None:
        n_seq_max = parallel + 2 if kv_unified else parallel
        n_cells = n_ctx if kv_unified else n_ctx * n_seq_max
        sizes = {"n_ctx": n_cells, "n_seq_max": n_seq_max, "n_batch": n_batch, "n_threads": 1}
        self.context = Context(Model(kind, gpu=gpu), **sizes, kv_unified=kv_unified)
        self.config = EngineConfig(parallel=parallel, itl_target=itl_target, max_step_seconds=1e9)
        self.scheduler = Scheduler(self.context, self.config)

    def add(self, prompt: list[int], name: str = "r", **options: Any) -> Choice:
        request = bare_request(name, prompt=prompt, **options)
        self.scheduler.add(request)
        self.scheduler.start_pending()
        return request.choices[0]

    def has_room_for(self, n_tokens: int) -> bool:
        """Return whether a waiting request with a prompt of this length would start now."""
        request = bare_request("waiting", prompt=[9] * n_tokens)
        return self.scheduler.choose([request]) is request

    def step(self) -> list[Part]:
        """Plan, compute, and take the tokens as the engine does; every step takes a millisecond."""
        items = self.plan_and_compute()
        if items:
            self.scheduler.cost.observe(sum(item.n_tokens for item in items), 0.001)
        return [Part(item.seq, item.n_tokens) for item in items]

    def decode(self, *choices: Choice) -> None:
        """Compute until each of the choices has a token."""
        while not all(choice.generated for choice in choices):
            self.step()

    def plan_and_compute(self) -> list[StepItem]:
        items = self.scheduler.plan()
        for row in self.context.step(items).rows if items else ():
            choice = self.scheduler.choice(row.seq)
            choice.n_committed += row.n_tokens
            if row.token >= 0:
                choice.generated.append(row.token)
                if choice.leads and len(choice.generated) == 1:
                    self.scheduler.prompt_computed(choice)
        return items
