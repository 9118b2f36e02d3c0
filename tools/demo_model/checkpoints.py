"""Training state on disk."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .model import Llama, ModelConfig


@dataclass(slots=True)
class Progress:
    """How far training has come.

    Attributes
    ----------
    tokens_seen
        Targets computed since the start; the schedule and the number of steps follow from it.
    epoch
        Passes finished.
    offset
        Tokens of the current epoch's stream that are used up. In tokens, not rows, so that the context may be changed
        when training is resumed.
    """

    tokens_seen: int = 0
    epoch: int = 0
    offset: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def save(path: Path, model: Llama, average: dict[str, Tensor], optimizers: list[Optimizer], progress: Progress) -> None:
    """Write a checkpoint; an interrupted write leaves the former one intact."""
    partial = path.with_suffix(".partial")
    state = {
        "config": asdict(model.config),
        "model": model.state_dict(),
        "average": average,
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": asdict(progress),
    }
    torch.save(state, partial)
    os.replace(partial, path)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint as plain data."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def resume(path: Path, model: Llama, average: dict[str, Tensor], optimizers: list[Optimizer]) -> Progress:
    """Load a checkpoint into `model`, `average` and `optimizers`."""
    state = read(path)
    model.load_state_dict(state["model"])
    average.update(state["average"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Progress(**state["progress"])


def load_model(path: Path, averaged: bool) -> tuple[Llama, Progress]:
    """Rebuild a model for evaluation or export, from the raw or the averaged weights."""
    state = read(path)
    model = Llama(ModelConfig(**state["config"]))
    model.load_state_dict(state["average" if averaged else "model"])
    return model.eval(), Progress(**state["progress"])
