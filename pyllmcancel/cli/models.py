"""``pyllmcancel models``."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from pyllmcancel.hub.cache import CachedModel, cache_folder, cached_models
from pyllmcancel.hub.names import quant_of
from pyllmcancel.hub.progress import in_units
from pyllmcancel.models import packaged_model_path

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

DESCRIPTION = """\
List the models that can be served without a download: the packaged one, which `pyllmcancel serve` serves by default,
and those in the cache of the Hugging Face hub, with the name to type after `pyllmcancel serve -hf`.
"""
PACKAGED = "(packaged)"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "models", help="list the models that are on this machine", description=DESCRIPTION, allow_abbrev=False
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: a list of models; the packaged model has no name"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    path = packaged_model_path()
    models = [CachedModel(PACKAGED, quant_of(path.name), path, path.stat().st_size), *cached_models()]
    if arguments.json:
        rows = [
            {
                "name": None if model.name == PACKAGED else model.name,
                "quant": model.quant or None,
                "size": model.size,
                "path": str(model.path),
            }
            for model in models
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    table = [("NAME", "QUANT", "SIZE", "PATH")]
    table += [(model.name, model.quant or "-", in_units(model.size), str(model.path)) for model in models]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, quant, size, place in table:
        line = f"{name:{widths[0]}}  {quant:{widths[1]}}  {size:>{widths[2]}}  {place}"
        sys.stdout.write(line + "\n")
    if len(models) == 1:
        sys.stderr.write(f"no model is cached in {cache_folder()}; to download one: pyllmcancel serve -hf USER/MODEL\n")
    return 0
