"""``pyllmcancel cluster up``: servers and their balancer on this machine."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.cli import llama_options, serve, serve_options
from pyllmcancel.cli.environment import check_environment
from pyllmcancel.cli.options import add_option, port_number, positive_int, variable_of
from pyllmcancel.cli.parser import Parser
from pyllmcancel.cli.peers import has_library
from pyllmcancel.cli.storage import default_path, on_disk
from pyllmcancel.cluster.haproxy import Program, Settings
from pyllmcancel.cluster.places import MAX_REPLICAS, Peer, Replica, check_bind, check_replicas
from pyllmcancel.cluster.ports import LOOPBACK, bind_text, check_free, free_ports
from pyllmcancel.config import default_threads
from pyllmcancel.errors import Error, UsageError

if TYPE_CHECKING:
    from pyllmcancel.cluster.up import Plan
    from pyllmcancel.server.config import ServerConfig

    Commands = argparse._SubParsersAction[Any]

DESCRIPTION = """\
Run servers and their balancer on this machine. A process that dies is started again, and all of them end with this
command. All options that are not listed here are options of `pyllmcancel serve`, and are passed on to each server. The
servers map the same model file, so they share its memory. Each server has its own cells, and the threads are divided.
"""
LOOPBACKS = {"127.0.0.1", "::1", "localhost"}


def add_parser(commands: Commands) -> None:
    text = "run servers and their balancer on this machine"
    parser = commands.add_parser("up", help=text, description=DESCRIPTION, allow_abbrev=False)
    parser.passes_on = True
    group = parser.add_argument_group("cluster")
    text = "number of servers"
    add_option(group, "replicas", positive_int, 2, text)
    add_option(group, "host", str, LOOPBACK, "address that the balancer listens on; several separated by commas")
    add_option(group, "port", port_number, 8000, "port that the balancer listens on; 0 chooses a free one")
    add_option(group, "haproxy", str, None, "path of the HAProxy to run", metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if sys.platform != "linux":
        # Only Linux ends the servers with this command in every case, even when the command is killed.
        sys.stderr.write(
            "pyllmcancel: `cluster up` needs Linux; on other systems start each server, then `cluster haproxy`\n"
        )
        return 2
    logging.basicConfig(
        level="INFO",
        format="%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    try:
        plan = plan_of(arguments)
    except (Error, OSError, UnicodeError) as error:
        sys.stderr.write(f"pyllmcancel: {serve.worded(error)}\n")
        return 2
    from pyllmcancel.cluster.up import up

    return up(plan)


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Find out everything that can be found out before a process is started; UsageError if something is wrong."""
    from pyllmcancel.cluster.up import Plan

    given = served(arguments.passed_on)
    config = checked(given)
    if arguments.replicas > MAX_REPLICAS:
        raise UsageError(f"there must be 1 to {MAX_REPLICAS} replicas, not {arguments.replicas}")
    check_bind(arguments.host)
    program = Program.find(arguments.haproxy or os.environ.get("HAPROXY"))
    check_free(arguments.host, arguments.port)
    *ports, chosen, between = free_ports(arguments.replicas + 2)
    replicas = [Replica(f"r{i + 1}", f"{LOOPBACK}:{port}") for i, port in enumerate(ports)]
    check_replicas(replicas)
    port = arguments.port or chosen
    open_to = {one.strip() for one in arguments.host.split(",")}
    if not open_to <= LOOPBACKS and not config.api_keys:
        logging.getLogger("pyllmcancel.cluster").warning(
            "anybody who reaches %s can use the servers: there is no --api-key", arguments.host
        )
    settings = Settings(
        replicas=replicas,
        bind=bind_text(arguments.host, port),
        asks_for_keys=bool(config.api_keys),
        slots=config.engine.parallel,
        settle=0,  # the configuration is not reloaded, and no connection of a dead server lives on
        by_address=config.supersede == "client-ip",
        peers=(Peer("balancer", f"{LOOPBACK}:{between}"),),
    )
    know_each_other = has_library() and arguments.replicas > 1
    if not has_library():
        text = (
            "the servers do not know each other, so names in bodies work within one server only: pip install"
            " 'pyllmcancel[fleet]'"
        )
        logging.getLogger("pyllmcancel.cluster").warning(text)
    names = known_as(sorted(open_to), given, config)
    commands = [
        [*command(one, given, arguments), *names, *(as_peers(one, replicas) if know_each_other else ())]
        for one in replicas
    ]
    first = next((one for one in sorted(open_to) if one in LOOPBACKS), sorted(open_to)[0])
    host = LOOPBACK if first in ("0.0.0.0", "*", "") else first
    # A key on the command line could be read by others.
    environment = {variable_of("peer-key"): secrets.token_hex(32)} if know_each_other else {}
    url = f"http://{bind_text(host, port)}"
    drain = config.drain_delay + config.drain
    has_file = given.api_key_file is not None
    return Plan(program, settings, commands, url, drain, environment, passes_hangup=has_file)


def served(passed_on: Sequence[str]) -> argparse.Namespace:
    """Parse the options that are passed on to ``pyllmcancel serve``."""
    parser = Parser(prog="pyllmcancel cluster up", allow_abbrev=False)
    serve_options.add_all(parser)
    return parser.parse_args(passed_on)


def checked(given: argparse.Namespace) -> ServerConfig:
    """Check the options as a server would, so that a mistake is reported once, before any server starts."""
    llama_options.warn(given)
    check_environment(given, os.environ)
    serve.model_to_fetch(given)
    if serve.certificate_of(given) is not None:
        raise UsageError(
            "the servers behind the balancer do not use TLS: see `pyllmcancel cluster haproxy` for `ssl crt`"
        )
    if given.peers or given.replica is not None:
        raise UsageError("--peers and --replica are set by this command: the servers are each other's peers")
    if given.supersede == "user" and not has_library():
        raise UsageError(
            "--supersede user does not work here: the balancer does not read the body, which names the user, and the "
            "servers do not know each other: pip install 'pyllmcancel[fleet]'"
        )
    return serve.server_config(given)


def as_peers(replica: Replica, replicas: Sequence[Replica]) -> Sequence[str]:
    """Return the options by which a server knows its peers."""
    if len(replicas) == 1:
        return ()
    return "--peers", ",".join(f"http://{one.address}" for one in replicas), "--replica", replica.name


def known_as(hosts: Sequence[str], given: argparse.Namespace, config: ServerConfig) -> Sequence[str]:
    """Return the options by which a server accepts the names that its balancer is bound to, which clients ask for."""
    known = config.served_as()
    names = (
        () if known is None else [host for host in hosts if host not in ("", "*") and bind_text(host, 1) not in known]
    )
    return ("--allowed-hosts", ",".join((*given.allowed_hosts, *names))) if names else ()


def command(replica: Replica, given: argparse.Namespace, arguments: argparse.Namespace) -> list[str]:
    """Return the command that starts one server."""
    threads = given.threads or max(1, default_threads() // arguments.replicas)
    return [
        # -P: Python finds the installed package, not a checkout in which the command is run.
        *(sys.executable, "-P", "-m", "pyllmcancel", "serve", *arguments.passed_on),
        *("--host", replica.host, "--port", str(replica.port), "--threads", str(threads)),
        # Only the balancer knows the clients' addresses.
        *("--trusted-proxies", ",".join(dict.fromkeys((*given.trusted_proxies, LOOPBACK)))),
        *stored(given.store, replica.name, arguments.port),
        *on_disk(given.cache_disk, replica.name),
        "--no-greeting",
    ]


def stored(store: str | None, name: str, port: int) -> list[str]:
    """Return the option of a server's own file of responses, beside the file that was named."""
    if store in ("off", "memory"):
        return ["--store", store]
    path = default_path(port) if store is None else Path(store)
    if path is None:
        return []
    if store is None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ["--store", str(path.with_name(f"{path.stem}-{name}{path.suffix}"))]
