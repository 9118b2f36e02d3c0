"""How many answers change with the company that they are computed in: ``python -m bench.company``.

The same prompts are answered greedily one after the other, each in an empty context, and then several at a time, with
no cancel. Printed for each way of keeping cells: how many answers differ, and the first place where one does.
``tests/native/test_cell_order.py`` says why some do.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from pyllmcancel import Engine, EngineConfig

CELLS = ("f16", "q8_0", "f32")


def prompts(seed: int) -> Iterator[str]:
    """Beginnings of functions of the standard library, of some lines each, without end."""
    chance = random.Random(seed)
    files = sorted(Path(ast.__file__).parent.glob("*.py"))
    while True:
        lines = chance.choice(files).read_text(errors="replace").splitlines()
        if starts := [number for number, line in enumerate(lines) if line.startswith("def ")]:
            start = chance.choice(starts)
            yield "\n".join(lines[start : start + chance.randrange(1, 12)]) + "\n"


def answers(engine: Engine, asked: Sequence[tuple[str, int]], at_a_time: int) -> list[list[int]]:
    def answer(one: tuple[str, int]) -> list[int]:
        prompt, max_tokens = one
        stream = engine.generate(prompt, temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return [token for delta in stream for token in delta.tokens]

    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(answer, asked))


def config(arguments: argparse.Namespace, cells: str, *, unified: bool, parallel: int) -> EngineConfig:
    return EngineConfig(
        model=arguments.model,
        ctx_size=2048 * parallel,
        parallel=parallel,
        # Alone, a request must find no prefix of those before it.
        cached_sequences=4 if parallel > 1 else 0,
        cache_ram=1024 if parallel > 1 else 0,
        kv_unified=unified,
        cache_type_k=cells,
        cache_type_v=cells,
        # Which converts F32 cells to F16.
        flash_attn="off" if cells == "f32" else "on",
        threads=arguments.threads,
    )


def compare(arguments: argparse.Namespace, cells: str, *, unified: bool, asked: Sequence[tuple[str, int]]) -> str:
    with Engine.load(config(arguments, cells, unified=True, parallel=1)) as engine:
        alone = answers(engine, asked, 1)
    with Engine.load(config(arguments, cells, unified=unified, parallel=arguments.parallel)) as engine:
        company = answers(engine, asked, 2 * arguments.parallel)
    firsts = [
        next(place for place, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs)
        for one, other in zip(alone, company, strict=True)
        if one != other
    ]
    where = f", the first at its token {min(firsts)}" if firsts else ""
    return f"{len(firsts)} of {len(asked)} answers differ{where}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.company", description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a GGUF file; default: the packaged one")
    parser.add_argument("--answers", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--parallel", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--cells", choices=CELLS, nargs="+", default=CELLS, help="default: all")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    asked = [(prompt, chance.randrange(8, 64)) for prompt in islice(prompts(arguments.seed), arguments.answers)]
    for cells in arguments.cells:
        for unified in (True, False):
            kept = "unified" if unified else "divided"
            sys.stdout.write(f"{cells:5} {kept}: {compare(arguments, cells, unified=unified, asked=asked)}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
