"""Drafts from the past: the answers to an owner's recent requests, cancelled ones included.

A typist's next prompt is the last one, the beginning of what was suggested, and a letter. A retry is the last prompt
again. So the tokens that follow a prompt are often known, or nearly.

An owner's answers are drafts for that owner only. Otherwise the time of an answer would reveal what other owners have
asked. The owner that has the most in memory loses its oldest answers first, so a flood of one owner's requests costs
another owner nothing.

Used by the engine thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from pyllmcancel.drafting.lookup import MAX_SEARCHED, SIZE, TokenText

Tokens = Sequence[int] | TokenText
Span = tuple[int, int]

MAX_OWNERS = 1024
MAX_SEQUENCES = 64  # of an owner: each is compared with each of the owner's prompts
MAX_OWNER_BYTES = 4 << 20
MAX_TEXTS = 8  # that are given out for lookups; of MAX_SEARCHED tokens together
# The limit of tokens whose bytes are compared for one prompt. Their number is small where two tokenizations of a text
# meet again soon; a client that sends tokens can make them differ everywhere.
MAX_WALKED = 1024
OVERHEAD = 512  # bytes of a remembered sequence without its tokens


@dataclass(slots=True)
class Past:
    """A prompt and its answer, of which a model generated `spans` under `key`: they do not touch, and are in order."""

    text: TokenText
    spans: list[Span]
    key: Hashable | None

    @property
    def n_bytes(self) -> int:
        return SIZE * len(self.text) + OVERHEAD

    def certain(self, n_prompt: int) -> int:
        """Return the end of the generated part that goes on after the first `n_prompt` tokens, or `n_prompt`."""
        return next((end for begin, end in self.spans if begin <= n_prompt < end), n_prompt)


@dataclass(slots=True)
class OwnersPast:
    """The sequences of an owner, oldest first."""

    sequences: list[Past] = field(default_factory=list)
    n_bytes: int = 0

    def add(self, past: Past) -> None:
        self.sequences.append(past)
        self.n_bytes += past.n_bytes

    def remove(self, past: Past) -> None:
        self.sequences = [other for other in self.sequences if other is not past]
        self.n_bytes -= past.n_bytes


class PastAnswers:
    """The recent sequences of each owner: `most_bytes` bytes at most, and limits for each owner.

    `pieces` gives the bytes of a token, none for a control token; `tokenize` the tokens of bytes alone, which are not
    used if their bytes are others. `n_bytes` is the memory that the sequences take; any thread may read it.
    """

    def __init__(
        self, pieces: Callable[[int], bytes], tokenize: Callable[[bytes], list[int]], *, most_bytes: int
    ) -> None:
        self._pieces = pieces
        self._tokenize = tokenize
        self._most_bytes = most_bytes
        self.n_bytes = 0
        self._owners: OrderedDict[str, OwnersPast] = OrderedDict()  # the least recently used first

    def remember(self, owner: str, prompt: Sequence[int], answer: Sequence[int], key: Hashable | None) -> None:
        """Add a sequence. Of two sequences with the same key, one that is a beginning of the other goes into it.

        The `key` is all that the answer depends on besides the tokens before it; with a seed, a grammar, or penalties
        of generated tokens it has the prompt's length, too. None: the answer is not known before.
        """
        n_prompt, text = len(prompt), TokenText(prompt)
        text.extend(answer)
        past = Past(text, [(n_prompt, len(text))], key)
        if not answer or past.n_bytes > min(MAX_OWNER_BYTES, self._most_bytes):
            return
        theirs = self._owners.setdefault(owner, OwnersPast())
        self._owners.move_to_end(owner)
        before = theirs.n_bytes
        theirs.add(_united(past, theirs))
        self.n_bytes += theirs.n_bytes - before
        while len(theirs.sequences) > MAX_SEQUENCES or theirs.n_bytes > MAX_OWNER_BYTES:
            self._discard_oldest(owner)
        self._make_room()

    def certain(self, owner: str, prompt: Tokens, key: Hashable | None) -> list[int]:
        """Return the tokens that are certain to follow `prompt`: they were generated after the same tokens under the
        same key.

        The longest such answer is returned; none if `key` is None.
        """
        if key is None or owner not in self._owners:
            return []
        text = _text(prompt)
        found: list[int] = []
        for past in self._newest_first(owner):
            if past.key == key and past.text.begins_with(text):
                end = past.certain(len(text))
                if end - len(text) > len(found):
                    found = past.text[len(text) : end]
        return found

    def expected(self, owner: str, prompt: Tokens, most: int) -> list[int]:
        """Return at most `most` tokens that are likely to follow `prompt`: its text is a beginning of a sequence's.

        If the prompt ends within a token of the newest such sequence, the rest of that token is tokenized alone, and
        the sequence's next tokens follow. Control tokens have no text, and must be the same.
        """
        if owner not in self._owners or most <= 0:
            return []
        comparison = Comparison(_text(prompt), self._pieces)
        for past in self._newest_first(owner):
            place = comparison.end_in(past.text)
            if place is None:
                continue
            index, rest = place
            tokens = self._tokens_of(rest)
            if tokens is not None and (expected := (tokens + past.text[index : index + most])[:most]):
                return expected
        return []

    def texts(self, owner: str) -> list[TokenText]:
        """Return the owner's newest sequences, newest first, for lookups. They must not be changed."""
        found: list[TokenText] = []
        if owner in self._owners:
            room = MAX_SEARCHED
            for past in self._newest_first(owner)[:MAX_TEXTS]:
                room -= len(past.text)
                if room < 0:
                    break
                found.append(past.text)
        return found

    def forget(self, owner: str) -> None:
        theirs = self._owners.pop(owner, None)
        if theirs is not None:
            self.n_bytes -= theirs.n_bytes

    def _newest_first(self, owner: str) -> list[Past]:
        self._owners.move_to_end(owner)
        return self._owners[owner].sequences[::-1]

    def _tokens_of(self, rest: bytes) -> list[int] | None:
        """Return tokens of exactly these bytes, which are the end of a token; None if the tokenizer has none."""
        if not rest:
            return []
        tokens = self._tokenize(rest)
        return tokens if b"".join(map(self._pieces, tokens)) == rest else None

    def _make_room(self) -> None:
        while len(self._owners) > MAX_OWNERS:
            self.forget(next(iter(self._owners)))
        while self.n_bytes > self._most_bytes:
            self._discard_oldest(max(self._owners, key=lambda owner: self._owners[owner].n_bytes))

    def _discard_oldest(self, owner: str) -> None:
        theirs = self._owners[owner]
        oldest = theirs.sequences[0]
        theirs.remove(oldest)
        self.n_bytes -= oldest.n_bytes
        if not theirs.sequences:
            del self._owners[owner]


class Comparison:
    """The comparison of a prompt with texts: by tokens as far as they agree, by bytes only from there on."""

    def __init__(self, prompt: TokenText, pieces: Callable[[int], bytes]) -> None:
        self._prompt = prompt
        self._pieces = pieces
        self._n_walks_left = MAX_WALKED

    def end_in(self, text: TokenText) -> tuple[int, bytes] | None:
        """Return where the prompt ends in `text`: the next token's index, and the bytes before it; None if nowhere."""
        ours = theirs = 0
        while True:
            n_equal = self._prompt.common_prefix(text, ours, theirs)
            ours, theirs = ours + n_equal, theirs + n_equal
            if ours == len(self._prompt):
                return theirs, b""
            walked = self._walk(text, ours, theirs)
            if walked is None:
                return None
            ours, theirs, rest = walked
            if ours == len(self._prompt):
                return theirs, rest

    def _walk(self, text: TokenText, ours: int, theirs: int) -> tuple[int, int, bytes] | None:
        """Go on from two different tokens to the next place where both texts have the border of a token, or to the
        prompt's end.

        Returns both indices, and the bytes that `text` has more. Returns None if the bytes differ.
        """
        our_bytes = their_bytes = b""
        while self._n_walks_left > 0:
            self._n_walks_left -= 1
            behind = len(our_bytes) <= len(their_bytes)
            if (ours == len(self._prompt)) if behind else (theirs == len(text)):
                return (ours, theirs, their_bytes) if behind else None
            piece = self._pieces(self._prompt[ours] if behind else text[theirs])
            if not piece:
                return None
            if behind:
                ours, our_bytes = ours + 1, our_bytes + piece
            else:
                theirs, their_bytes = theirs + 1, their_bytes + piece
            n_common = min(len(our_bytes), len(their_bytes))
            if our_bytes[:n_common] != their_bytes[:n_common]:
                return None
            our_bytes, their_bytes = our_bytes[n_common:], their_bytes[n_common:]
            if n_common and not our_bytes and not their_bytes:
                return ours, theirs, b""
        return None


def _united(past: Past, theirs: OwnersPast) -> Past:
    """Take the sequences out that are a beginning of `past`, or that `past` is a beginning of; return the longest."""
    for other in theirs.sequences:
        if other.key != past.key:
            continue
        if other.text.begins_with(past.text):
            longer = other
        elif past.text.begins_with(other.text):
            longer = past
        else:
            continue
        theirs.remove(other)
        past = Past(longer.text, _merged(other.spans + past.spans), past.key)
    return past


def _merged(spans: list[Span]) -> list[Span]:
    """Return the union of spans, in order, without spans that touch."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _text(tokens: Tokens) -> TokenText:
    return tokens if isinstance(tokens, TokenText) else TokenText(tokens)
