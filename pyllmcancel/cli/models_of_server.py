"""``pyllmcancel models status``, ``load``, ``unload`` and ``restart``: the models of a running server."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from pyllmcancel.cli.failures import Failure
from pyllmcancel.cli.options import Option, add_rows
from pyllmcancel.hub.progress import in_units

URL = "http://127.0.0.1:8000"
SECONDS = 10.0
LOOK_EVERY = 0.2
STATUS = "List the models of a running server, and whether they are loaded."
LOAD = "Have a running server load a model, and wait until it is loaded. Ctrl-C breaks the load off."
UNLOAD = "Have a running server unload a model. Its requests have the time of the server's --drain to end."
RESTART = "Have a running server start a model's processes anew, one after the other. No request ends by it."


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    actions = {"unload": UNLOAD, "restart": RESTART}
    acting = [(name, text, partial(act, f"/models/{name}")) for name, text in actions.items()]
    for name, text, run in (("status", STATUS, show), ("load", LOAD, load), *acting):
        parser = commands.add_parser(name, help=re.split("[.,]", text)[0].lower(), description=text, allow_abbrev=False)
        if name != "status":
            parser.add_argument("name", metavar="NAME", help="id of the model")
        group = parser.add_argument_group("server")
        add_rows(group, [Option("--url URL", str, URL, "address of the server")], "models-")
        add_rows(group, [Option("--api-key KEY", str, None, "key; with several owners an administrator's")])
        parser.set_defaults(run=run)


def show(arguments: argparse.Namespace) -> int:
    rows = [("MODEL", "STATUS", "SIZE", "RUNNING", "WAITING")]
    failures = []
    for one in asked(arguments, "/v1/models")["data"]:
        status = one.get("status", {})
        if status.get("failed"):
            failures.append(str(status["error"]))
        size = one["size"] if "size" in one else one["meta"]["size"]
        counts = (str(one.get("running", "-")), str(one.get("waiting", "-")))
        rows.append((one["id"], status_words(one), in_units(size), *counts))
    write_table(rows)
    sys.stdout.writelines(f"{why}\n" for why in failures)
    return 0


def write_table(rows: Sequence[Sequence[str]], to_right: int | None = None) -> None:
    """Write rows in columns, of which one may be aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            text.rjust(width) if place == to_right else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def status_words(model: dict[str, Any]) -> str:
    """Return a model's status in words. A server of one model has none: it is loaded."""
    status = model.get("status", {"value": "loaded"})
    if status.get("failed"):
        return "failed"
    progress = status.get("progress")
    words = f"{status['value']} {progress:.0%}" if progress is not None else str(status["value"])
    values = [one["status"]["value"] for one in model.get("replicas", ())]
    return f"{words} ({values.count('loaded')} of {len(values)})" if values else words


def load(arguments: argparse.Namespace) -> int:
    asked(arguments, "/models/load", {"model": arguments.name})
    try:
        while True:
            status = asked(arguments, f"/v1/models/{arguments.name}")["status"]
            if status["value"] == "loaded":
                return 0
            if status["value"] != "loading":
                raise Failure(status.get("error", f"the model {arguments.name} was unloaded"), 1)
            time.sleep(LOOK_EVERY)
    except KeyboardInterrupt:
        asked(arguments, "/models/unload", {"model": arguments.name})
        raise


def act(path: str, arguments: argparse.Namespace) -> int:
    asked(arguments, path, {"model": arguments.name})
    return 0


def asked(arguments: argparse.Namespace, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return the server's answer; Failure if there is none, or an error."""
    headers = {} if arguments.api_key is None else {"Authorization": f"Bearer {arguments.api_key}"}
    data = None if body is None else json.dumps(body).encode()
    try:
        request = Request(arguments.url.rstrip("/") + path, data, headers | {"Content-Type": "application/json"})
        # The environment's proxies are not used: the server is given by its own address.
        with build_opener(ProxyHandler({})).open(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise Failure(message_in(error), 1) from None
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise Failure(f"{arguments.url} does not answer: {reason}", 1) from None


def message_in(error: HTTPError) -> str:
    try:
        found: str = json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {error.code}"
    return found
