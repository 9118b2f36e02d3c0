"""Prompts of given lengths, counted in the server's own tokens."""

from __future__ import annotations

import random
import uuid

from pyllmcancel.bench.answer import ExchangeError
from pyllmcancel.bench.client import Ask, Client, Outcome

# Short, common words, each of which is one or a few tokens for any tokenizer of English.
COMMON = """
about again all also and answer around away because before below big both but came car children close could cut did
does door each eat enough every eye family father few first food found from girl good group had hard have hear her
high home how important its keep know large later leave letter light line little long made man may might more mother
move must near never next now off old open other out own paper people place play put quick read right run same say
sea see sentence she show small something soon spell state stop study take tell that them there thing this thought
through together tree turn under upon very want water well were when which white why with word world write young
"""
WORDS = tuple(COMMON.split())
TRIES = 12


# The ways to ask servers for a count: of llama-server and this project, of vLLM, of llama-cpp-python. One field each,
# because some servers refuse unknown fields.
WAYS = (("/tokenize", "content"), ("/tokenize", "prompt"), ("/extras/tokenize/count", "input"))


class Prompts:
    """Makes prompts for one server.

    Attributes
    ----------
    how
        ``tokenize``: the server's own endpoint counts; ``usage``: two probe requests' ``usage`` gives a line from words
        to tokens; ``words``: the server does not count, and a word counts as a token.
    """

    def __init__(self, client: Client, how: str, fixed: float, per_word: float, way: tuple[str, str] = WAYS[0]) -> None:
        self._client = client
        self.how = how
        self._fixed = fixed  # tokens of the template, or of a text's beginning
        self._per_word = per_word
        self._way = way

    @classmethod
    async def learn(cls, client: Client) -> Prompts:
        """Find out how this server counts tokens."""
        few, many = [await usage_of(client, n) for n in (20, 120)]
        for way in WAYS:
            counted = await count_tokens(client, way, " ".join(sample(120)))
            if counted:
                fixed = many - counted if many is not None else 0
                return cls(client, "tokenize", fixed, counted / 120, way)
        if few is None or many is None or many <= few:
            return cls(client, "words", 0.0, 1.0)
        per_word = (many - few) / 100
        return cls(client, "usage", few - 20 * per_word, per_word)

    async def make(self, n_tokens: int, seed: str) -> str:
        """Make a prompt of `n_tokens` tokens, or as near as words allow; other seeds give other words from the first
        on.
        """
        chance = random.Random(f"prompt: {seed}")
        words = drawn(chance, max(1, round((n_tokens - self._fixed) / self._per_word)))
        if self.how == "tokenize":
            words = await self._fit(words, n_tokens - round(self._fixed), chance)
        return " ".join(words)

    async def _fit(self, words: list[str], n_tokens: int, chance: random.Random) -> list[str]:
        """Add or drop words at the end until the server counts `n_tokens`, or as near as possible."""
        best: tuple[int, list[str]] | None = None
        for _ in range(TRIES):
            counted = await count_tokens(self._client, self._way, " ".join(words))
            off = n_tokens - (counted if counted is not None else n_tokens)
            if best is None or abs(off) < best[0]:
                best = abs(off), words
            if off == 0:
                break
            by = round(off / self._per_word) or (1 if off > 0 else -1)
            words = words + drawn(chance, by) if by > 0 else words[: max(1, len(words) + by)]
        assert best is not None
        return best[1]


def drawn(chance: random.Random, n_words: int) -> list[str]:
    return [chance.choice(WORDS) for _ in range(n_words)]


def sample(n_words: int) -> list[str]:
    """Return the same words every time."""
    return drawn(random.Random("sample"), n_words)


async def count_tokens(client: Client, way: tuple[str, str], text: str) -> int | None:
    """Let the server count; None if it has no such endpoint."""
    path, field = way
    # vLLM needs the model's name; llama-server does not.
    fields = {field: text} | ({"model": client.target.model} if field == "prompt" else {})
    try:
        found = await client.fetch_json("POST", path, fields)
    except ExchangeError:
        return None
    match found:
        case {"tokens": [*tokens]}:
            return len(tokens)
        case {"count": int(count)}:
            return count
        case _:
            return None


async def usage_of(client: Client, n_words: int) -> int | None:
    """Return the prompt tokens that the server counts for `n_words` sample words; None if it does not report them."""
    request_id = f"bench-usage-{uuid.uuid4().hex}"
    # Not as a stream: some servers leave the usage out of streams.
    ask = Ask(prompt=" ".join(sample(n_words)), max_tokens=1, request_id=request_id, stream=False)
    exchange = await client.ask(ask)
    return exchange.prompt_tokens if exchange.outcome is Outcome.OK else None
