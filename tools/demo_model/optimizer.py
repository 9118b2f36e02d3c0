"""Muon for the matrices, AdamW for the rest, and the learning-rate schedule."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from .model import Llama


@dataclass(slots=True, frozen=True)
class Schedule:
    """Warm-up, plateau, then a straight line to zero, all counted in tokens.

    Counting tokens, not time, lets training be suspended at will; on the plateau `total` may still be changed.
    """

    total: int
    warmup: int = 400_000
    decay_share: float = 0.4

    @property
    def decay_start(self) -> int:
        """Tokens seen when the plateau ends."""
        return int(self.total * (1 - self.decay_share))

    def factor(self, seen: int) -> float:
        """Multiplier of the learning rate after `seen` tokens."""
        rising = (seen + 1) / self.warmup
        falling = (self.total - seen) / (self.total - self.decay_start)
        return max(0.0, min(1.0, rising, falling))


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Replace each matrix by a nearby one whose singular values are all near 1.

    Newton-Schulz iteration with the quintic coefficients published for Muon (Jordan et al., 2024).

    Parameters
    ----------
    matrices
        Shape (count, rows, columns), rows <= columns.
    steps
        Iterations; 5 suffice in single precision.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x: Tensor = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(Optimizer):
    """Momentum whose update is orthogonalised, for two-dimensional hidden weights.

    It needs about half of AdamW's tokens for the same loss, which counts where a CPU trains.
    """

    def __init__(self, params: list[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        """Nesterov momentum, laid out with rows <= columns."""
        assert parameter.grad is not None
        buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(parameter.grad, 1 - momentum)
        update = parameter.grad.lerp(buffer, momentum)
        direction: Tensor = update.mT if parameter.shape[0] > parameter.shape[1] else update
        return direction

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights; matrices of one shape are orthogonalised together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                direction = self._direction(parameter, group["momentum"])
                shapes[direction.shape].append((parameter, direction))
            for members in shapes.values():
                updates = orthogonalise(torch.stack([direction for _, direction in members]))
                for (parameter, _), update in zip(members, updates, strict=True):
                    rows, columns = parameter.shape
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(
                        update.mT if rows > columns else update, alpha=-group["lr"] * max(1, rows / columns) ** 0.5
                    )


def make_optimizers(model: Llama) -> list[Optimizer]:
    """Muon for the blocks' matrices, AdamW for embeddings and norms; `initial_lr` is what the schedule scales."""
    matrices = [p for p in model.blk.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    embedding = {"params": [model.token_embd.weight], "lr": 0.004}
    adam = AdamW([embedding, {"params": norms, "lr": 0.004}], betas=(0.9, 0.95), weight_decay=0.0)
    optimizers: list[Optimizer] = [Muon(matrices, lr=0.02, weight_decay=0.1), adam]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers
