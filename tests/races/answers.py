"""The answer to a request alone, and whether another got the same in company."""

from dataclasses import dataclass

from tests.support.device import NEAR_TIE
from tests.support.driver import RecordingSink


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy tokens of a request alone; the first `n_sure` are the same in any company, on the CPU all of them."""

    tokens: list[int]
    n_sure: int

    def is_begun_by(self, got: list[int]) -> bool:
        n_compared = min(len(got), self.n_sure)
        return len(got) <= len(self.tokens) and got[:n_compared] == self.tokens[:n_compared]

    def is_whole(self, got: list[int]) -> bool:
        return len(got) == len(self.tokens) and self.is_begun_by(got)


def answer_of(sink: RecordingSink) -> Answer:
    """The answer of a request that asked for the logprobs of two alternatives beside each token."""
    tokens = sink.tokens()
    steps = [logprobs for delta in sink.deltas for logprobs in delta.logprobs]
    assert len(steps) == len(tokens)
    margins = [float(top["logprob"][0] - top["logprob"][1]) for top in (step.top for step in steps)]
    sure = (number for number, margin in enumerate(margins) if margin < NEAR_TIE)
    return Answer(tokens, next(sure, len(tokens)))
