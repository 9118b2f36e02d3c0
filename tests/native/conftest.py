"""Fixtures of the native tests and the contract: a module, one of its models, and contexts on it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllmcancel import _native
from pyllmcancel.errors import ContextBusy
from pyllmcancel.models import packaged_model_path
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepResult, StepRow, StepStatus
from tests.support import fake_model, fake_native
from tests.support.device import load_model
from tests.support.threads import N_THREADS
from tests.support.tiny_models import write_tiny_llama

# Flash attention sums up in 16 bits, in an order and with a kernel that depend on who else is there, on the threads and
# on the processor: sooner or later a choice hangs on that. Without it what is left is the seventh digit, which decides
# none in these tests.
SAME_TOKENS_IN_COMPANY = {"flash_attention": 0, "type_k": 0, "type_v": 0}
PROMPT = [(7 * n + 3) % 250 for n in range(40)]
OTHER = [(11 * n + 5) % 250 for n in range(30)]
SAMPLING = SamplingParams.__dataclass_fields__
OPEN_OPTIONS = ("n_held", "n_reusable", "n_described", "adapters", "adapted_from")


@dataclass(slots=True)
class World:
    """A native module, real or fake, with a model. Its contexts have `options`, unless a test says otherwise."""

    native: Any
    kind: str
    path: Path
    model: Any
    options: dict[str, Any] = field(default_factory=lambda: SAME_TOKENS_IN_COMPANY)

    @property
    def survives_abort(self) -> bool:
        """Return whether an abort leaves the cells of finished steps as they were."""
        return self.kind in {"attention", "sliding-window"}

    def context(self, **options: Any) -> Any:
        sizes = {"n_ctx": 512, "n_seq_max": 4, "n_batch": 128, "n_threads": N_THREADS}
        options = sizes | self.options | options
        return self.native.Context(self.model, **options)

    def with_flash_attention(self) -> World:
        """The same, with contexts as the engine makes them; without flash attention no cells are copied."""
        return replace(self, options={})

    def sampler(self, **sampling: Any) -> Any:
        return self.native.Sampler(self.model, SamplingParams(**{"temperature": 0.0} | sampling))

    def open(self, context: Any, seq: int, tokens: Sequence[int], **options: Any) -> Any:
        """Open `seq`; returns its flag. Options are the context's, or sampling parameters."""
        flag = self.native.CancelFlag()
        how = {name: options.pop(name) for name in OPEN_OPTIONS if name in options}
        context.open(seq, list(tokens), self.sampler(**options), flag, **how)
        return flag

    def opened(self, tokens: Sequence[int], **options: Any) -> Any:
        """A context in which sequence 0 is open; options are the context's, and those of `open`."""
        how = {name: options.pop(name) for name in (*OPEN_OPTIONS, *SAMPLING) if name in options}
        context = self.context(**options)
        self.open(context, 0, tokens, **how)
        return context

    def sampled(self, tokens: Sequence[int], **sampling: Any) -> tuple[Any, Any]:
        """A context in which sequence 0 is open, and its sampler."""
        context, sampler = self.context(), self.sampler(**sampling)
        context.open(0, list(tokens), sampler, self.native.CancelFlag())
        return context, sampler

    def computed(self, tokens: Sequence[int], n_tokens: int, **options: Any) -> Any:
        """The same, and so many of its tokens are computed."""
        context = self.opened(tokens, **options)
        ok(context.step([(0, n_tokens)]))
        return context

    def idle(self, tokens: Sequence[int], n_tokens: int, **options: Any) -> Any:
        """The same, and the sequence is closed and has kept its cells."""
        context = self.computed(tokens, n_tokens, **options)
        context.close(0, keep=True)
        return context

    def run(self, context: Any, seq: int, count: int) -> list[int]:
        """Compute `seq` alone until it has got `count` tokens."""
        got: list[int] = []
        while len(got) < count:
            n_pending = len(context.tokens(seq)) - context.n_committed(seq)
            (row,) = ok(context.step([(seq, min(n_pending, context.n_batch))]))
            got += [row.token] * (row.token >= 0)
        return got

    def first_row(self, tokens: Sequence[int], **sampling: Any) -> StepRow:
        """The row of a step that computes all `tokens`, in a context of its own."""
        (row,) = ok(self.opened(tokens, **sampling).step([(0, len(tokens))]))
        return row

    def alone(self, tokens: Sequence[int], count: int, **sampling: Any) -> list[int]:
        """The answer to `tokens` in a context of its own."""
        return self.run(self.opened(tokens, **sampling), 0, count)


def ok(result: Any) -> list[StepRow]:
    assert result.status is StepStatus.OK
    return result.rows


def mask_of(n_vocab: int, *tokens: int) -> np.ndarray:
    """Return the mask that allows only these tokens, shape (ceil(n_vocab / 32),)."""
    bits = np.zeros((n_vocab + 31) // 32 * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


REAL = ("attention", "sliding-window", "recurrent", "hybrid")
FAKE = ("attention", "recurrent", "hybrid")


@pytest.fixture(scope="session")
def make_world(model_files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], World]:
    """Make a world from its name, as ``real hybrid``; a model is loaded once."""
    folder, worlds = tmp_path_factory.mktemp("fakes"), dict[str, World]()

    def make(name: str) -> World:
        if name not in worlds:
            module, kind = name.split()
            if module == "fake":
                path = folder / f"{kind}.fake"
                path.write_text(fake_model.MAGIC + kind)
                worlds[name] = World(fake_native, kind, path, fake_native.Model.load(path))
            else:
                worlds[name] = World(_native, kind, model_files[kind], load_model(model_files[kind]))
        return worlds[name]

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test each of the WORLDS of its module: by default every kind of memory, compiled and fake."""
    if "world" in metafunc.fixturenames and not hasattr(metafunc.module, "world"):
        every = [*(f"real {kind}" for kind in REAL), *(f"fake {kind}" for kind in FAKE)]
        metafunc.parametrize("world", getattr(metafunc.module, "WORLDS", every), indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, make_world: Callable[[str], World]) -> World:
    return make_world(request.param)


@pytest.fixture(params=[f"real {kind}" for kind in REAL])
def real_world(request: pytest.FixtureRequest, make_world: Callable[[str], World]) -> World:
    return make_world(request.param)


@pytest.fixture
def no_preemption() -> Iterator[None]:
    """Python threads run until they release the GIL of their own accord."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="session")
def slow_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """An attention model whose steps last long enough to be met in their middle."""
    path = tmp_path_factory.mktemp("slow") / "slow.gguf"
    write_tiny_llama(path, n_layer=8, n_embd=128, n_head=4, n_head_kv=4, n_ff=512)
    return World(_native, "attention", path, load_model(path))


@pytest.fixture(scope="session")
def packaged() -> World:
    path = packaged_model_path()
    return World(_native, "attention", path, load_model(path))


def step_and_cancel(context: Any, items: Sequence[tuple[int, int]], flags: Sequence[Any], delay: int = 0) -> Any:
    """Step in another thread, and raise `flags` from this one a moment after the step has released the GIL.

    To be used with `no_preemption`, so that this thread does not wake before that; `delay` counts turns of a loop.
    Returns the step's result, or ContextBusy if the step was refused.
    """
    entered = threading.Event()
    results: list[StepResult | ContextBusy] = []

    def step() -> None:
        entered.set()
        try:
            results.append(context.step(items))
        except ContextBusy as error:
            results.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    entered.wait()
    for _ in range(delay):
        pass
    for flag in flags:
        flag.set()
    thread.join()
    return results[0]
