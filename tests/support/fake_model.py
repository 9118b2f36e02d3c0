"""The fake model of `fake_native`, its sampler and its cancel flag.

The model is a function of the text: the logits after some tokens are drawn from a generator that those tokens seed, so
any two computations of the same tokens agree, whatever happened in between. Tokens 0 to 255 are bytes, 256 is the end.
"""

from __future__ import annotations

import math
import random
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_float
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pyllmcancel.adapters import UNADAPTED, Adapted, Adapter, Scales
from pyllmcancel.errors import LoadCancelled, ModelLoadError, UsageError
from pyllmcancel.step import LogitFault, SampledToken

EOS = 256
N_VOCAB = 257
MAGIC = "fake model, memory: "
NOTHING = "root ::= nothing"  # a grammar that allows no token
TOP = np.dtype([("token", "<i4"), ("logprob", "<f4")])


class CancelFlag:
    """As the real one; besides, it tells its watchers, and the threads that wait for it."""

    def __init__(self) -> None:
        self._raised = threading.Event()
        self._watchers: tuple[Callable[[], None], ...] = ()

    def set(self) -> None:
        self._raised.set()
        for tell in self._watchers:
            tell()

    def is_set(self) -> bool:
        return self._raised.is_set()

    def wait(self, timeout: float) -> bool:
        return self._raised.wait(timeout)

    def watch(self, tell: Callable[[], None]) -> None:
        self._watchers = (*self._watchers, tell)

    def unwatch(self, tell: Callable[[], None]) -> None:
        self._watchers = tuple(watcher for watcher in self._watchers if watcher != tell)


class Model:
    """A model of 257 tokens. `answers` fixes what follows certain prompts; the end of an answer is EOS."""

    n_vocab = N_VOCAB
    n_swa = 0
    adds_bos = adds_eos = adds_sep = False
    chat_template = None
    description = "fake"
    special_tokens = {"eos": EOS}  # noqa: RUF012 - a constant
    n_embd = n_layer = 1
    n_params = 0
    size = 1 << 20
    has_invariant_rows = True

    def __init__(self, memory_kind: str = "attention", n_ctx_train: int = 2048, *, gpu: bool = False) -> None:
        self.memory_kind = memory_kind
        self.n_ctx_train = n_ctx_train
        self.layers_by_device = {"Fake0" if gpu else "CPU": 2}
        self.is_offloaded = gpu
        self.metadata = {"general.architecture": "fake"}
        self.n_scores = 0
        self.labels: list[str] = []
        self.answers: dict[bytes, bytes] = {}
        self.adapters: list[Adapter] = []

    @property
    def can_divide_cells(self) -> bool:
        return self.memory_kind == "attention"

    @staticmethod
    def load(path: Any, *, progress: Any = None, lora: Iterable[Any] = (), **_options: Any) -> Model:
        try:
            text = Path(path).read_text(errors="replace")
        except OSError as error:
            raise ModelLoadError(f"{path}: {error.strerror}") from error
        if not text.startswith(MAGIC):
            raise ModelLoadError(f"{path}: not a fake model")
        for fraction in (0.0, 0.5, 1.0):
            if progress is not None and progress(fraction) is False:
                raise LoadCancelled("loading was cancelled by its progress callback")
        model = Model(text.removeprefix(MAGIC))
        model.adapters = [Adapter() for _ in lora]
        return model

    def check_adapters(self, scales: Scales) -> None:
        numbers = [number for number, _ in scales]
        if sorted(set(numbers)) != numbers or any(not 0 <= number < len(self.adapters) for number in numbers):
            raise UsageError("adapters are named once, in ascending order")
        if any(c_float(scale).value == 0.0 or not math.isfinite(scale) for _, scale in scales):
            raise UsageError("the scale of an adapter is 0, or is not finite")

    def is_eog(self, token: int) -> bool:
        return token == EOS

    def eog_tokens(self) -> list[int]:
        return [EOS]

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)

    def longest_piece(self) -> int:
        return len(b"<eos>")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        check_token(token)
        return bytes([token]) if token < EOS else b"<eos>" * special

    def pieces(self, *, special: bool = False) -> list[bytes]:
        return [self.piece(token, special=special) for token in range(N_VOCAB)]

    def logits(self, tokens: Sequence[int], made: Sequence[Scales] = ()) -> np.ndarray:
        """Logits after `tokens`, shape (n_vocab,). `made`: the adapters that computed each token."""
        text = array("i", tokens).tobytes()
        logits = logits_after(text + repr(made).encode() if any(made) else text)
        for prompt, answer in self.answers.items():
            n_said = len(tokens) - len(prompt)
            if n_said >= 0 and list(tokens) == list(prompt + answer[:n_said]):
                logits = logits.copy()
                logits[[*answer, EOS][n_said]] = 100.0
        return logits

    def greedy(self, prompt: Sequence[int], n_tokens: int, adapted: Adapted = UNADAPTED) -> list[int]:
        """Return the answer to a lone request at temperature 0, without EOS."""
        tokens = list(prompt)
        while len(tokens) - len(prompt) < n_tokens:
            token = int(self.logits(tokens, [adapted.at(index) for index in range(len(tokens))]).argmax())
            if token == EOS:
                break
            tokens.append(token)
        return tokens[len(prompt) :]


@lru_cache(maxsize=4096)
def logits_after(tokens: bytes) -> np.ndarray:
    logits = np.random.default_rng(zlib.crc32(tokens)).standard_normal(N_VOCAB, dtype=np.float32) * 3
    logits[EOS] = -20.0
    logits.flags.writeable = False
    return logits


def check_token(token: int) -> None:
    if not 0 <= token < N_VOCAB:
        raise UsageError(f"token {token} is not in the vocabulary")


class Sampler:
    """Greedy, or Gumbel noise of its own on scaled logits; biases, EOS banning and logprobs as in the real one."""

    def __init__(self, model: Model, sampling: Any, sibling: Sampler | None = None) -> None:
        for token, _ in sampling.logit_bias:
            check_token(token)
        if sampling.grammar and "root ::=" not in sampling.grammar:
            raise UsageError("the grammar could not be parsed: grammar does not contain a 'root' symbol")
        self._sampling = sampling
        self._masks: deque[np.ndarray | None] = deque()
        self._random = random.Random(sampling.seed)

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            check_token(token)

    def restrict(self, *masks: np.ndarray | None) -> None:
        self._masks = deque(
            None if mask is None else np.unpackbits(mask.view(np.uint8), bitorder="little")[:N_VOCAB] for mask in masks
        )

    def sample(self, logits: np.ndarray, fault: LogitFault) -> tuple[SampledToken | None, LogitFault]:
        mask = self._masks.popleft() if self._masks else None
        if self._sampling.grammar == NOTHING or (mask is not None and not mask.any()):
            fault = LogitFault.GRAMMAR
        if fault is not LogitFault.NONE:
            return None, fault
        allowed = np.full(N_VOCAB, True) if mask is None else mask.astype(bool)
        token = self._choose(np.where(allowed, logits, -np.inf).astype(np.float64))
        if self._sampling.n_logprobs is None:
            return SampledToken(token), fault
        _, logprob, top = self.describe(logits, token)
        return SampledToken(token, logprob, top), fault

    def describe(self, logits: np.ndarray, token: int) -> tuple[int, float, np.ndarray]:
        logprobs = logits - np.logaddexp.reduce(logits)
        best = np.argsort(-logprobs, kind="stable")[: self._sampling.n_logprobs or 0]
        top = np.fromiter(((other, logprobs[other]) for other in best), TOP, len(best))
        top.flags.writeable = False
        return token, float(logprobs[token]), top

    def _choose(self, logits: np.ndarray) -> int:
        for token, bias in self._sampling.logit_bias:
            logits[token] += bias
        if self._sampling.ignore_eos:
            logits[EOS] = -np.inf
        if self._sampling.temperature > 0.0:
            noise = [self._random.random() for _ in range(N_VOCAB)]
            logits = logits / self._sampling.temperature - np.log(-np.log(noise))
        return int(logits.argmax())
