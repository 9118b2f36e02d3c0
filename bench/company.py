"""How many answers change with what else is computed: ``python -m bench.company --model FILE.gguf``.

Each prompt is answered greedily by an engine of its own, which has computed nothing before. The same prompts are then
answered by one engine: in rounds, one at a time; beside three and seven others; with every other request idle, so that
it is paused and goes on; and with another number of threads. A third of the requests that compute beside others are
cancelled, each after a random number of tokens, and are not compared. The length of prompts grows evenly on a
logarithmic scale. Printed for each way: how many answers differ from the first ones, and the first token at which one
does.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from pyllmcancel import Engine, EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.requests.request import IDLE
from pyllmcancel.requests.token_stream import ThreadSink, ThreadStream

Answer = tuple[int, ...]


class Asked(NamedTuple):
    """A prompt's tokens, and the most tokens of its answer."""

    prompt: list[int]
    max_tokens: int


def texts(chance: random.Random) -> str:
    """Source code of the standard library, file after file, in a random order."""
    files = sorted(Path(ast.__file__).parent.glob("*.py"))
    chance.shuffle(files)
    return "\n".join(path.read_text(errors="replace") for path in files[:24])


def questions(config: EngineConfig, arguments: argparse.Namespace) -> list[Asked]:
    chance = random.Random(arguments.seed)
    with Engine.load(config) as engine:
        tokens = engine.model.tokenize(texts(chance), add_special=False)
        most = min(arguments.longest, engine.n_ctx - 80)
    asked = []
    for number in range(arguments.answers):
        share = number / max(arguments.answers - 1, 1)
        length = round(arguments.shortest * (most / arguments.shortest) ** share)
        start = chance.randrange(len(tokens) - length)
        asked.append(Asked(tokens[start : start + length], chance.randrange(40, 61)))
    chance.shuffle(asked)
    return asked


def answer(engine: Engine, asked: Asked, leaves_after: int | None = None, priority: int = 0) -> Answer | None:
    """The answer's tokens; None if it was cancelled after some."""
    got: list[int] = []
    params = generation_params(temperature=0.0, max_tokens=asked.max_tokens, ignore_eos=True)
    sink = ThreadSink()
    with ThreadStream(engine.submit([asked.prompt], params, sink, priority=priority), engine, sink) as stream:
        for delta in stream:
            got += delta.tokens
            if leaves_after is not None and len(got) >= leaves_after:
                return None
    return tuple(got)


def in_company(
    engine: Engine, asked: Sequence[Asked], at_a_time: int, seed: int, priorities: Sequence[int] = (0,)
) -> list[Answer | None]:
    chance = random.Random(seed)
    leaves = [chance.randrange(1, 40) if at_a_time > 1 and chance.random() < 1 / 3 else None for _ in asked]
    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(partial(answer, engine), asked, leaves, cycle(priorities)))


def compared(first: Sequence[Answer | None], others: Sequence[Answer | None]) -> str:
    pairs = [(one, other) for one, other in zip(first, others, strict=True) if one is not None and other is not None]
    places = [
        next((place for place, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs), len(one))
        for one, other in pairs
        if one != other
    ]
    where = f", the first at token {min(places)}" if places else ""
    return f"{len(pairs) - len(places)} of {len(pairs)} are the same{where}"


def alone(config: EngineConfig, asked: Sequence[Asked]) -> list[Answer | None]:
    found: list[Answer | None] = []
    for one in asked:
        with Engine.load(config) as engine:
            found.append(answer(engine, one))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.company", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the packaged one")
    parser.add_argument("--answers", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--shortest", type=int, default=10, help="tokens of the shortest prompt; default: %(default)s")
    parser.add_argument("--longest", type=int, default=4000, help="tokens of the longest prompt; default: %(default)s")
    parser.add_argument("--kv-unified", action="store_true", help="one store of cells for all sequences")
    parser.add_argument("--cells", default="f16", help="type of the cells; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    config = EngineConfig(
        model=arguments.model,
        threads=arguments.threads[0],
        kv_unified=arguments.kv_unified or None,
        cache_type_k=arguments.cells,
        cache_type_v=arguments.cells,
    )
    asked = questions(config, arguments)
    first = alone(config, asked)

    def tell(way: str, others: Sequence[Answer | None]) -> None:
        sys.stdout.write(f"{way:40} {compared(first, others)}\n")
        sys.stdout.flush()

    for threads in arguments.threads:
        for parallel in (4, 8):
            with Engine.load(replace(config, threads=threads, parallel=parallel)) as engine:
                if parallel == 4:
                    for number in range(arguments.rounds):
                        tell(f"threads {threads}, round {number + 1}", in_company(engine, asked, 1, 0))
                way = f"threads {threads}, company of {parallel}"
                tell(way, in_company(engine, asked, parallel, arguments.seed))
                tell(f"{way}, half idle", in_company(engine, asked, 2 * parallel, arguments.seed, (0, IDLE)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
