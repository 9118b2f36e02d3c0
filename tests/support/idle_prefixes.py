"""Contexts whose sequences are idle and hold something, for tests of the prefix cache."""

from typing import Any

from pyllmcancel.sampling import SamplingParams
from pyllmcancel.scheduling.prefix_cache import PrefixCache
from tests.support.fake_native import CancelFlag, Context, Model, Sampler

LONG = list(range(60))
RUNNING = (7,)  # runs


def context_with(
    *contents: list[int], open_seqs: tuple[int, ...] = (), n_seq_max: int = 4, n_ctx: int = 1024, **options: Any
) -> Context:
    """A context whose first sequences hold `contents`, idle but for `open_seqs`; `n_ctx` for each if divided."""
    model = Model()
    n_cells = n_ctx if options.get("kv_unified", True) else n_ctx * n_seq_max
    context = Context(model, n_ctx=n_cells, n_seq_max=n_seq_max, n_batch=512, n_threads=1, **options)
    for seq, tokens in enumerate(contents):
        if not tokens:
            continue
        compute(context, seq, tokens)
        if seq not in open_seqs:
            context.close(seq, keep=True)
    return context


def compute(context: Context, seq: int, tokens: list[int]) -> None:
    """Open a sequence, and compute what it does not hold yet."""
    context.open(seq, tokens, Sampler(context.model, SamplingParams(temperature=0.0)), CancelFlag())
    context.step([(seq, len(tokens) - context.n_committed(seq))])


def cache_of(context: Context, *, swap_bytes: int = 0) -> PrefixCache:
    return PrefixCache(context, swap_bytes=swap_bytes)
