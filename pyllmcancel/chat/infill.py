"""Fill-in-the-middle prompts: the text before a gap and the text after it, in the model's own special tokens.

The order of tokens is the repository-level format of the Qwen2.5-Coder report (arXiv:2409.12186), which
llama-server's ``/infill`` also follows::

    [bos] [rep]name [sep]filename text … [sep]filename [pre]prefix [suf]suffix [mid]

Text that has to be cut is cut far from the gap. The cut of the prefix moves in strides: an editor sends the same text
with one more character each time, and a start that moved with every character would make the cached cells useless.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.pausing import Pause, no_pause

if TYPE_CHECKING:
    from pyllmcancel._native import Model

# Requests do not name the project and the edited file, but the format needs names.
PROJECT_NAME = "project"
EDITED_FILE = "file"
NEEDED = ("fim_pre", "fim_suf", "fim_mid")  # tokens
# Limit of tokens around the gap, however large the context: more of them seldom help, and each must be computed.
MAX_AROUND = 4096
STRIDES = 8  # parts of the prefix's room in which the cut moves


class Snippet(NamedTuple):
    """A piece of another file, or of another place in the same one."""

    filename: str
    text: str


class Gap(NamedTuple):
    """The tokens before and after the gap."""

    prefix: Sequence[int]
    suffix: Sequence[int]


class FimTokens(NamedTuple):
    """The special tokens of a model that can fill a gap; those of repositories are optional."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    separator: int | None
    bos: int | None

    @classmethod
    def of(cls, model: Model, param: str) -> FimTokens:
        """Return the model's tokens; raises InvalidRequestError, which names `param`, if the model has none."""
        special = model.special_tokens
        missing = [name for name in NEEDED if name not in special]
        if missing:
            raise InvalidRequestError(f"this model cannot fill a gap: it has no token for {', '.join(missing)}", param)
        bos = special.get("bos") if model.adds_bos else None
        prefix, suffix, middle = (special[name] for name in NEEDED)
        return cls(prefix, suffix, middle, special.get("fim_rep"), special.get("fim_sep"), bos)

    def around(self, gap: Gap) -> list[int]:
        return [self.prefix, *gap.prefix, self.suffix, *gap.suffix, self.middle]

    @property
    def beginning(self) -> list[int]:
        return [] if self.bos is None else [self.bos]


def fim_prompt(model: Model, prefix: str, suffix: str) -> list[int]:
    """Return the tokens that ask `model` to fill the gap, uncut; InvalidRequestError if the model has none for that."""
    fim = FimTokens.of(model, "suffix")
    return fim.beginning + fim.around(Gap(plain_tokens(model, prefix), plain_tokens(model, suffix)))


def infill_prompt(model: Model, gap: Gap, snippets: Sequence[Snippet], room: int, pause: Pause = no_pause) -> list[int]:
    """As `fim_prompt`, with snippets before it, cut to at most `room` tokens, or InvalidRequestError if that is too
    little.

    Of the room around the gap, the prefix gets three quarters and the suffix one; either may use the room that the
    other leaves. Snippets get the rest of `room`. The last ones are kept, since clients send the most relevant last.
    Between two of them `pause` is called, which may raise.
    """
    fim = FimTokens.of(model, "input_suffix")
    frame = len(fim.beginning) + 3
    if room < frame:
        raise InvalidRequestError(f"the context leaves {max(room, 0)} tokens for the prompt", "n_predict")
    around = cut(gap, min(room - frame, MAX_AROUND))
    # Counted from the largest size around the gap, not the actual one: snippets must not come and go with each
    # character.
    left = room - frame - min(len(gap.prefix) + len(gap.suffix), MAX_AROUND)
    return [*fim.beginning, *repository(model, fim, snippets, left, pause), *fim.around(around)]


def cut(gap: Gap, room: int) -> Gap:
    """Drop the beginning of the prefix, in strides, and the end of the suffix."""
    n_suffix = min(len(gap.suffix), max(room // 4, room - len(gap.prefix)))
    n_prefix = room - n_suffix
    excess = max(0, len(gap.prefix) - n_prefix)
    stride = max(1, n_prefix // STRIDES)
    dropped = min(-(-excess // stride) * stride, len(gap.prefix))
    return Gap(gap.prefix[dropped:], gap.suffix[:n_suffix])


def repository(model: Model, fim: FimTokens, snippets: Sequence[Snippet], room: int, pause: Pause) -> list[int]:
    """Return the whole snippets that fit into `room` tokens, with the tokens around them; nothing if none fits."""
    if not snippets:
        return []
    head = tail = []
    if fim.separator is not None:
        head = [] if fim.repository is None else [fim.repository, *plain_tokens(model, f"{PROJECT_NAME}\n")]
        tail = [fim.separator, *plain_tokens(model, f"{EDITED_FILE}\n")]
    longest = model.longest_piece()
    left = room - len(head) - len(tail)
    kept: list[list[int]] = []
    # From the last one on: a snippet without room is not even tokenized.
    for snippet in reversed(snippets):
        pause()
        if longest and len(snippet.text) > max(left, 0) * longest:
            break
        tokens = written(model, fim, snippet)
        left -= len(tokens)
        if left < 0:
            break
        kept.append(tokens)
    return [*head, *(token for tokens in reversed(kept) for token in tokens), *tail] if kept else []


def written(model: Model, fim: FimTokens, snippet: Snippet) -> list[int]:
    if fim.separator is None:
        return plain_tokens(model, f"--- {snippet.filename} ---\n{snippet.text}\n\n")
    return [fim.separator, *plain_tokens(model, f"{snippet.filename}\n{snippet.text}")]


def plain_tokens(model: Model, text: str) -> list[int]:
    """Return the tokens of source code, in which spelled-out special tokens are not recognised."""
    return model.tokenize(text, add_special=False, parse_special=False)
