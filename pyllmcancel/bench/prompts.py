"""Prompts of given lengths, counted in the server's own tokens."""

from __future__ import annotations

import random
import uuid

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


class Prompts:
    """Makes prompts for one server, by two probe requests' ``usage``; else a word counts as a token (`how`)."""

    def __init__(self, how: str, fixed: float, per_word: float) -> None:
        self.how = how
        self._fixed = fixed  # tokens of the template, or of a text's beginning
        self._per_word = per_word

    @classmethod
    async def learn(cls, client: Client) -> Prompts:
        """Find out how this server counts tokens."""
        few, many = [await usage_of(client, n) for n in (20, 120)]
        if few is None or many is None or many <= few:
            return cls("words", 0.0, 1.0)
        per_word = (many - few) / 100
        return cls("usage", few - 20 * per_word, per_word)

    def make(self, n_tokens: int, seed: str) -> str:
        """Make a prompt of about `n_tokens` tokens; other seeds give other words from the first on."""
        words = drawn(random.Random(f"prompt: {seed}"), max(1, round((n_tokens - self._fixed) / self._per_word)))
        return " ".join(words)


def drawn(chance: random.Random, n_words: int) -> list[str]:
    return [chance.choice(WORDS) for _ in range(n_words)]


def sample(n_words: int) -> list[str]:
    """Return the same words every time."""
    return drawn(random.Random("sample"), n_words)


async def usage_of(client: Client, n_words: int) -> int | None:
    """Return the prompt tokens that the server counts for `n_words` sample words; None if it does not report them."""
    request_id = f"bench-usage-{uuid.uuid4().hex}"
    # Not as a stream: some servers leave the usage out of streams.
    ask = Ask(prompt=" ".join(sample(n_words)), max_tokens=1, request_id=request_id, stream=False)
    exchange = await client.ask(ask)
    return exchange.prompt_tokens if exchange.outcome is Outcome.OK else None
