"""Requests without an engine, for tests of the parts that an engine is made of."""

from collections.abc import Sequence
from typing import Any

from pyllmcancel.cancellation import Cancellation
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.requests.detokenizer import Detokenizer
from pyllmcancel.requests.request import Choice, Request
from tests.support.driver import RecordingSink, split_origin
from tests.support.fake_model import CancelFlag, Model, Sampler


def bare_request(name: str = "r", *, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 4, **options: Any) -> Request:
    """A request that no engine knows, with its choices; `options` are fields of `Origin` and of its parameters."""
    origin = split_origin(options)
    params = generation_params(temperature=0.0, **options)
    request = Request(Cancellation(CancelFlag()), request_id=name, **origin)
    request.params, request.sink = params, RecordingSink()
    model = Model()
    for index in range(params.n):
        sampler = Sampler(model, params.sampling)
        detokenizer = Detokenizer(model.piece, params.stop)
        request.choices.append(Choice(request, index, prompt, sampler, max_tokens, detokenizer))
    return request
