"""The options of ``pyllmcancel serve`` as an application's arguments: the same names and checks, no second list."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pyllmcancel.cli import llama_options, serve, serve_options
from pyllmcancel.cli.environment import check_environment
from pyllmcancel.cli.options import OFF, ON
from pyllmcancel.cli.parser import Parser
from pyllmcancel.errors import UsageError
from pyllmcancel.server.config import ServerConfig

PROGRAM = "pyllmcancel.ray"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Options that have another place here, or cannot be kept.
NOT_HERE = {
    "host": "Ray listens: set http_options.host in its configuration",
    "port": "Ray listens: set http_options.port in its configuration",
    "ssl-key-file": "Ray listens: set http_options.ssl_keyfile in its configuration",
    "ssl-cert-file": "Ray listens: set http_options.ssl_certfile in its configuration",
    "trusted-proxies": "Ray's proxies do not pass on clients' addresses",
    "max-connections-per-address": "Ray's proxies do not pass on clients' addresses",
    "drain-delay": "Ray waits: set RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S in its environment",
    **dict.fromkeys(
        ("peers", "replica", "peer-key", "peer-key-file"), "Ray knows the replicas, and has names for them"
    ),
}


class Arguments(Parser):
    """Raises an error where a command would end the process."""

    def exit(self, _status: int = 0, message: str | None = None) -> NoReturn:
        raise UsageError((message or "").partition("\n")[0].replace(": error:", ":"))


def parser() -> Arguments:
    made = Arguments(prog=PROGRAM, add_help=False, allow_abbrev=False)
    serve_options.add_all(made)
    return made


def command_line(given: Mapping[str, Any]) -> list[str]:
    """Return the line for ``pyllmcancel serve``, from arguments as a command line or a configuration has them.

    Raises
    ------
    UsageError
        An option has another place here; `served` checks the other options.
    """
    known = parser()._option_string_actions
    line = []
    for key, value in given.items():
        name = key.replace("_", "-")
        if name in NOT_HERE:
            raise UsageError(f"{PROGRAM}: {key} cannot be set for a replica. {NOT_HERE[name]}")
        switch = isinstance(known.get(f"--{name}"), argparse.BooleanOptionalAction)
        for one in value if isinstance(value, list | tuple) else [value]:
            line += [] if one is None else [_switched(key, name, one) if switch else f"--{name}={one}"]
    return line


def _switched(key: str, name: str, value: Any) -> str:
    """Return a command line's arguments, which are texts, even if a configuration's are true or false."""
    word = str(value).lower()
    if word not in ON + OFF:
        raise UsageError(f"{PROGRAM}: {key} must be true or false, not {value!r}")
    return f"--{name}" if word in ON else f"--no-{name}"


def served(line: Sequence[str]) -> argparse.Namespace:
    """Parse the options; UsageError for those that are invalid on any machine."""
    found = parser().parse_args(line)
    if found.supersede == "client-ip":
        raise UsageError(f"{PROGRAM}: --supersede client-ip: Ray's proxies do not pass on clients' addresses")
    if found.store not in (None, "memory", "off"):
        raise UsageError(
            f"{PROGRAM}: --store: only one server can use a file, and replicas come and go; use memory or off"
        )
    found.store = found.store or "memory"
    return found


def checked(arguments: argparse.Namespace, cpus: float) -> ServerConfig:
    """Return a replica's configuration; UsageError, InvalidRequestError or OSError if it is impossible.

    Ray counts processors without binding replicas to them. Without --threads, a replica uses as many threads as it was
    given processors.
    """
    llama_options.warn(arguments)
    check_environment(arguments, os.environ)
    if arguments.threads == 0 and cpus >= 1:
        arguments.threads = int(cpus)
    return serve.server_config(arguments)


def check_open(host: str | None, config: ServerConfig, *, open_to_all: bool) -> None:
    """Raise UsageError if strangers would be answered without permission.

    In HAProxy mode Ray listens on all addresses by default.
    """
    if config.api_keys or open_to_all or host in LOOPBACK:
        return
    raise UsageError(
        f"Ray Serve listens on {host}, and there is no API key: set http_options.host: 127.0.0.1 in its"
        " configuration, or give api_key_file, or open_to_all: true"
    )
