"""The clients of ``docs/clients.md``, each with a task: to call a tool, to stream, and to stop when it is told to.

    python -m tests.clients                              # all; those that are not here are fetched into build/clients
    python -m tests.clients codex opencode claude-code   # some
    python -m tests.clients --record recordings          # keep what they send, one file a request
    python -m tests.clients --whole-prompts              # compute all that agents send, 30,000 tokens and more
    python -m tests.clients --list

Needs the tests' packages, pip, and for the clients of Node node and npm. Prints a table, and for each client the line
of the server's log that tells of its cancel. Exits with 1 if one of them could not do something.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path

from tests.clients.clients import ALL, BY_NAME, Client
from tests.clients.evidence import Evidence, evidence, say
from tests.clients.model import serving
from tests.clients.proxy import Exchange
from tests.clients.session import Session
from tests.support.http_process import ServerProcess

HEAD = (
    "| client | version | requests | events streamed | tool | cancelled in | ms after the key | of them the server's |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(BY_NAME)}")
    parser.add_argument("--list", action="store_true", help="print their names and pins")
    parser.add_argument("--fetch", action="store_true", help="fetch them and run nothing")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write what they send into FOLDER")
    parser.add_argument("--whole-prompts", action="store_true", help="do not cut what the model gets")
    options = parser.parse_args()
    if unknown := set(options.clients) - set(BY_NAME):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    chosen = [BY_NAME[name] for name in options.clients] or list(ALL)
    if options.list:
        sys.stdout.writelines(f"{client.name}: {' '.join(client.environment.pins)}\n" for client in chosen)
        return 0
    failed = [client for client in chosen if not is_fetched(client)]
    if not options.fetch:
        failed += run([client for client in chosen if client not in failed], options)
    return int(bool(failed))


def is_fetched(client: Client) -> bool:
    try:
        client.environment.fetch()
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        sys.stdout.write(f"{client.name}: MISSING, {error}\n")
        return False
    return True


def run(clients: list[Client], options: argparse.Namespace) -> list[Client]:
    """Run them before one server; those that could not do something."""
    notes, failed = [], []
    say(HEAD, "|---" * 8 + "|")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clients-")))
        server = stack.enter_context(serving(folder, "--threads", "2", whole_prompts=options.whole_prompts))
        for client in clients:
            (folder / client.name).mkdir()
            seen, exchanges, faults = show(client, server, folder / client.name)
            say(row(client, seen))
            notes += [f"{client.name}: FAULT: {fault}" for fault in faults]
            notes += [f"{client.name}: {seen.log_line}"] if seen and seen.log_line else []
            failed += [client] if faults else []
            if options.record is not None:
                write(exchanges, options.record / client.name)
            server.wait_idle()
    say("", *notes)
    return failed


def show(client: Client, server: ServerProcess, folder: Path) -> tuple[Evidence | None, list[Exchange], list[str]]:
    """Have a client do its task; what it showed, what it sent, and what was wrong."""
    with Session(client.name, client.environment, server, folder) as session:
        try:
            left_at = client.use(session)
        except Exception:
            seen = evidence(session.proxy.exchanges, server, 0.0)
            log = [line for line in server.log.splitlines() if f" {client.name}-" in line]
            return None, session.proxy.exchanges, [*seen.refused, *log, traceback.format_exc(limit=-3)]
        server.wait_idle()
        seen = evidence(session.proxy.exchanges, server, left_at)
        return seen, session.proxy.exchanges, seen.faults


def row(client: Client, seen: Evidence | None) -> str:
    name, version = client.name, client.environment.version
    if seen is None:
        return f"| {name} | {version} | failed | | | | | |"
    tool = "yes" if seen.has_used_tool else "no"
    times = f"{seen.seconds * 1e3:.0f} | {seen.stopped_ms:.1f}"
    return f"| {name} | {version} | {seen.n_requests} | {seen.n_events:,} | {tool} | {seen.phase} | {times} |"


def write(exchanges: list[Exchange], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(exchanges, 1):
        kept = {"method": one.method, "path": one.path, "headers": one.headers, "status": one.status, "body": one.body}
        (folder / f"{number:03}.json").write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    raise SystemExit(main())
