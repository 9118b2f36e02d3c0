"""Train the model; run again with the same folder to go on.

`python -m tools.demo_model.train --folder build/demo-model`
"""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.optim import Optimizer
from tqdm import tqdm  # type: ignore[import-untyped]

from . import checkpoints, corpus, stream, tokenizer
from .evaluate import bits_per_byte
from .model import Llama, ModelConfig, rope_tables
from .optimizer import Schedule, make_optimizers

SEED = 1
logger = logging.getLogger("demo_model.train")


@dataclass(slots=True)
class Run:
    """Everything that one call of the script works with."""

    folder: Path
    model: Llama
    optimizers: list[Optimizer]
    schedule: Schedule
    words: Tokenizer
    files: list[corpus.SourceFile]
    held_out: list[corpus.SourceFile]
    options: argparse.Namespace
    average: dict[str, Tensor] = field(default_factory=dict)
    progress: checkpoints.Progress = field(default_factory=checkpoints.Progress)
    stop: bool = False

    def save(self, name: str = "checkpoint.pt") -> None:
        """Write the state that `prepare` resumes from."""
        checkpoints.save(self.folder / name, self.model, self.average, self.optimizers, self.progress)


def parse_options() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="tokenizer and checkpoints; kept between calls")
    parser.add_argument("--tokens", type=int, default=8_600_000, help="length of the whole training")
    parser.add_argument("--decay-share", type=float, default=0.3, help="share of it in which the rate falls to 0")
    parser.add_argument("--context", type=int, default=512, help="tokens a row at first, where they cost least")
    parser.add_argument("--long-share", type=float, default=0.12, help="share at the end with rows of the full context")
    parser.add_argument("--step-tokens", type=int, default=8192, help="tokens an optimiser step")
    parser.add_argument("--micro-tokens", type=int, default=4096, help="tokens a forward pass")
    parser.add_argument("--save-tokens", type=int, default=400_000, help="tokens between checkpoints")
    parser.add_argument("--score-tokens", type=int, default=1_200_000, help="tokens between held-out scores")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true", help="where no C++ compiler is at hand")
    return parser.parse_args()


def _tokenizer(path: Path, files: list[corpus.SourceFile]) -> Tokenizer:
    if not path.exists():
        tokenizer.train(file.text for file in files).save(str(path))
    return tokenizer.load(path)


def prepare(options: argparse.Namespace) -> Run:
    """Build the run, or pick it up where its folder has it."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    options.folder.mkdir(parents=True, exist_ok=True)
    files, held_out = corpus.split(corpus.collect())
    words = _tokenizer(options.folder / "tokenizer.json", files)
    model = Llama(ModelConfig(vocabulary=words.get_vocab_size(), layers=options.layers))
    schedule = Schedule(options.tokens, decay_share=options.decay_share)
    run = Run(options.folder, model, make_optimizers(model), schedule, words, files, held_out, options)
    run.average = {name: value.clone() for name, value in model.state_dict().items()}
    if (path := options.folder / "checkpoint.pt").exists():
        run.progress = checkpoints.resume(path, model, run.average, run.optimizers)
    logger.info("%d parameters, %d files", model.parameter_count(), len(files))
    return run


def batches(run: Run, length: int) -> Iterator[Tensor]:
    """Rows for one optimiser step each, for ever; moves `run.progress` to the position after the batch."""
    rows_a_step = max(1, run.options.step_tokens // length)
    while True:
        tokens = stream.epoch(run.files, run.words, SEED, run.progress.epoch)
        rows = stream.rows(tokens, length, SEED, run.progress.epoch)
        logger.info("epoch %d: %d tokens", run.progress.epoch, len(tokens))
        first = run.progress.offset // length
        for start in range(first, len(rows) - rows_a_step + 1, rows_a_step):
            run.progress.offset = (start + rows_a_step) * length
            yield torch.from_numpy(rows[start : start + rows_a_step].astype("int64"))
        run.progress.epoch, run.progress.offset = run.progress.epoch + 1, 0


def _update(run: Run, loss_function: Callable[..., Tensor], batch: Tensor, tables: tuple[Tensor, Tensor]) -> float:
    """One optimiser step; returns its loss in nats a token."""
    targets = torch.from_numpy(stream.targets(batch.numpy()))
    micro_rows = max(1, run.options.micro_tokens // targets.shape[1])
    parts = range(0, len(batch), micro_rows)
    total = 0.0
    for start in parts:
        inputs = batch[start : start + micro_rows, :-1].contiguous()
        loss = loss_function(inputs, targets[start : start + micro_rows], *tables) / len(parts)
        torch.autograd.backward(loss)
        total += loss.item()
    factor = run.schedule.factor(run.progress.tokens_seen)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    run.progress.tokens_seen += targets.numel()
    return total


def _average(run: Run) -> None:
    """Follow the weights with a horizon that grows to some 200 steps: on the plateau it stands in for a decay."""
    step = run.progress.tokens_seen // run.options.step_tokens
    weight = max(0.005, 1 / (step + 1))
    for name, value in run.model.state_dict().items():
        run.average[name].lerp_(value, weight)


def _score(run: Run, loss: float) -> None:
    scored = Llama(run.model.config)
    scores = {}
    for name, state in (("raw", run.model.state_dict()), ("averaged", run.average)):
        scored.load_state_dict(state)
        scores[name] = bits_per_byte(scored, run.words, run.held_out[::3], window=run.options.context)
    run.progress.history.append({"tokens": run.progress.tokens_seen, "loss": loss, **scores})
    logger.info("%.2fM tokens: %s", run.progress.tokens_seen / 1e6, run.progress.history[-1])


def _keep(run: Run, before: int, loss: float, finished: bool) -> None:
    """Score and save where the step that began at `before` tokens crossed a multiple of their intervals."""
    seen = run.progress.tokens_seen
    if before < run.schedule.decay_start <= seen:
        run.save("plateau.pt")
    if before // run.options.score_tokens != seen // run.options.score_tokens:
        _score(run, loss)
    if finished or before // run.options.save_tokens != seen // run.options.save_tokens:
        run.save()


def _train_until(run: Run, end: int, context: int) -> None:
    """Train on rows of one length."""
    tables = rope_tables(run.model.config, context)
    loss_function = run.model.loss if run.options.no_compile else torch.compile(run.model.loss, dynamic=False)
    bar = tqdm(total=end, initial=run.progress.tokens_seen, unit="tok", unit_scale=True, mininterval=30)
    smoothed = 0.0
    for batch in batches(run, context):
        before = run.progress.tokens_seen
        loss = _update(run, loss_function, batch, tables)
        _average(run)
        smoothed = 0.95 * smoothed + 0.05 * loss if smoothed else loss
        bar.set_postfix_str(f"loss {smoothed:.3f} epoch {run.progress.epoch}", refresh=False)
        bar.update(run.progress.tokens_seen - before)
        finished = run.stop or run.progress.tokens_seen >= end
        _keep(run, before, smoothed, finished)
        if finished:
            break
    bar.close()


def train(run: Run) -> None:
    """Train until the schedule's end or until `run.stop`: short rows first, then those of the full context."""
    total = run.schedule.total
    short_end = int(total * (1 - run.options.long_share))
    for end, context in ((short_end, run.options.context), (total, run.model.config.context)):
        if not run.stop and run.progress.tokens_seen < end:
            _train_until(run, end, context)


def main() -> None:
    """Train, with SIGINT and SIGTERM saving before they end it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    run = prepare(parse_options())

    def stop(_signal: int, _frame: FrameType | None) -> None:
        run.stop = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    train(run)


if __name__ == "__main__":
    main()
