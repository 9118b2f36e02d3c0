"""The results of placement options on this machine: ``python -m bench.gpu.placement --model M [--experts M2]``.

One line of a Markdown table for each: where layers went, what the device's memory would take, seconds until the engine
was there, and whether its greedy answer is the CPU's. Or the error, before anything was loaded.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bench.tables import head, line
from pyllmcancel import _native
from pyllmcancel.cli.options import positive_int
from pyllmcancel.cli.parser import Parser
from pyllmcancel.cli.placement_options import add_placement_options, placement_of
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.context_options import context_options
from pyllmcancel.engine.engine import Engine
from pyllmcancel.errors import Error
from pyllmcancel.placement import Device, Placement, described, gib

COLUMNS = ("options", "layers", "weights, cells, buffers there", "load", "answer")
DENSE = (
    "-dev none",
    "-ngl 0",
    "",
    "-ngl 2",
    "-ngl all",
    "-ngl all --no-kv-offload",
    "-ngl all --no-op-offload",
    "-ngl 2 -fit off",
)
EXPERTS = ("-ngl all", "-ngl all -cmoe", "-ngl all -ncmoe 1")
PROMPT = list(range(40, 90))


def placements(device: Device | None) -> list[str]:
    """Options of the table; those that name a device name `device`."""
    if device is None:
        return [*DENSE, "-dev GPU0", "-ts 1,1", "-mg 1", "-ot exps=GPU0"]
    name, total = device.name, device.total >> 20
    return [
        *DENSE,
        f"-dev {name}",
        "-ts 1",
        f"-ot attn={name} -ngl 0",
        "-ot attn=CPU -ngl all",
        f"-fitt {total}",
        "-ngl all -c 1000000",
        "-dev GPU9",
        "-ts 1,1",
        "-mg 1",
        "-ot (=CPU",
    ]


def parsed(options: str) -> tuple[Placement, int]:
    parser = Parser()
    add_placement_options(parser.add_argument_group())
    parser.add_argument("-c", type=positive_int, default=1024)
    found = parser.parse_args(options.split())
    return placement_of(found), found.c


def row(path: Path, options: str, expected: list[int] | None) -> tuple[list[str], list[int] | None]:
    """Cells of the table, and the answer's tokens."""
    placement, n_ctx = parsed(options)
    shown = f"`{options}`" if options else "none given"
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
    config = EngineConfig(model=path, placement=placement, ctx_size=n_ctx, threads=1, **exact)
    began = time.monotonic()
    try:
        engine = Engine.load(config)
    except Error as error:
        return [shown, f"error: {error}", "", "", ""], None
    with engine:
        seconds = time.monotonic() - began
        layers = ", ".join(f"{name}: {count}" for name, count in engine.model.layers_by_device.items())
        context = context_options(engine.model, engine.config)
        uses = _native.memory_use(path, engine.config.placement, **context)
        parts = (", ".join(map(gib, (use.weights, use.cells, use.buffers))) for use in uses)
        stream = engine.generate(PROMPT, generation_params(temperature=0.0, max_tokens=16, ignore_eos=True))
        tokens = [token for delta in stream for token in delta.tokens]
    n_same = sum(mine == theirs for mine, theirs in zip(tokens, expected or tokens, strict=True))
    return [shown, layers, "; ".join(parts) or "none", f"{seconds:.2f} s", f"{n_same} of {len(tokens)} tokens"], tokens


def table(path: Path, chosen: list[str]) -> None:
    expected: list[int] | None = None
    sys.stdout.write("\n".join(head(COLUMNS, text=len(COLUMNS))) + "\n")
    for options in chosen:
        cells, tokens = row(path, options, expected)
        expected = expected or tokens
        sys.stdout.write(line(cells) + "\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.placement", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--experts", type=Path, help="a model with experts, for the options about them")
    options = parser.parse_args()
    there = _native.devices()
    sys.stdout.write("".join(f"{described(device)}\n" for device in there) or "no device\n")
    device = next((device for device in there if device.preferred), None)
    table(options.model, placements(device))
    if options.experts is not None:
        table(options.experts, ["-dev none", *EXPERTS])


if __name__ == "__main__":
    main()
