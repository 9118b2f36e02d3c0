"""The llama architecture, as llama.cpp computes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(slots=True, frozen=True)
class ModelConfig:
    """Shape of the model.

    The widths must be multiples of 32, the block size of Q8_0.
    """

    vocabulary: int = 4096
    width: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 704
    context: int = 2048
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads


def rope_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, each of shape (length, head_width / 2)."""
    exponents = torch.arange(0, config.head_width, 2) / config.head_width
    angles = torch.arange(length)[:, None] * config.rope_base ** -exponents[None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Apply rotary embedding to neighbouring pairs (x[2i], x[2i+1]).

    This is llama.cpp's layout for the llama architecture, so that weights are exported as they are. Hugging Face
    rotates (x[i], x[i + d/2]) instead; the two differ by a permutation of the rows of q and k.
    """
    even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), -1).flatten(-2)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    """Attention and feed-forward with their norms; modules are named as GGUF names their tensors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        kv_width = config.kv_heads * config.head_width
        self.attn_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.attn_q = _linear(config.width, config.width)
        self.attn_k = _linear(config.width, kv_width)
        self.attn_v = _linear(config.width, kv_width)
        self.attn_output = _linear(config.width, config.width)
        self.ffn_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.ffn_gate = _linear(config.width, config.hidden)
        self.ffn_up = _linear(config.width, config.hidden)
        self.ffn_down = _linear(config.hidden, config.width)

    def _attend(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.reshape(*y.shape[:-1], -1, self.config.head_width).transpose(1, 2)

        query = rotate(heads(self.attn_q(x)), cosines, sines)
        key = rotate(heads(self.attn_k(x)), cosines, sines)
        value = heads(self.attn_v(x))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        output: Tensor = self.attn_output(attended.transpose(1, 2).flatten(2))
        return output

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Map (rows, tokens, width) to the same shape."""
        x = x + self._attend(self.attn_norm(x), cosines, sines)
        y = self.ffn_norm(x)
        added: Tensor = self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return x + added


class Llama(nn.Module):
    """A llama with tied input and output embeddings; state names equal GGUF tensor names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocabulary, config.width)
        self.blk = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.output_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for block in self.blk:
            for name, parameter in block.named_parameters():
                if parameter.ndim == 2:
                    nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
                # Each block begins as the identity, which lets a shallow warm-up do.
                if name.startswith(("attn_output", "ffn_down")):
                    nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Logits of shape (rows, tokens, vocabulary) for tokens of shape (rows, tokens)."""
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, cosines, sines)
        return functional.linear(self.output_norm(x), self.token_embd.weight)

    def loss(self, tokens: Tensor, targets: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Mean cross-entropy in nats over the targets that are not -100."""
        logits = self(tokens, cosines, sines)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)

    def parameter_count(self) -> int:
        """Number of weights, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
