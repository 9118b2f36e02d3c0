"""Sessions of agents, of 20 turns with tools, before chat templates that are strict: how many requests are refused.

    python -m tests.clients.long_sessions                    # Codex, Claude Code with its tool search, OpenCode
    python -m tests.clients.long_sessions codex --record recordings

A scripted model answers the agents, because the packaged one calls no tools by itself. Each of their requests goes, as
it was sent, to one server for each template as well; when that has begun to answer, it is left. Exits with 1 if one
was refused, or if an agent did not come to 20 turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from tests.clients.clients import BY_NAME
from tests.clients.model import CONTEXT, ENVIRONMENT, write_patient_model
from tests.clients.packages import Environment
from tests.clients.recipes import exports, recipe
from tests.clients.relay import Relay
from tests.clients.session import KEPT, end_processes
from tests.support.http_process import ServerProcess

FOLDER = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "models" / "templates"
TEMPLATES = {
    "Mistral": "Mistral-Small-3.2-24B-Instruct-2506.jinja",
    "Gemma": "google-gemma-2-2b-it.jinja",
    "Qwen3.5": "Qwen3.5-4B.jinja",
    "gpt-oss": "openai-gpt-oss-120b.jinja",
}
TURNS = 20
PROMPTS = ("Say hello with the tool.", "Again, please.", "And once more.", "A last time.")
PATIENCE = 300.0  # seconds for one prompt
REMINDER = "Always be brief.\n"  # in the files that agents put before the conversation

Run = Callable[[Environment, dict[str, str], str, Path, int], list[str]]


def codex(packages: Environment, environment: dict[str, str], url: str, project: Path, number: int) -> list[str]:
    home = Path(environment["HOME"]) / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(recipe("Codex CLI", url))
    options = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
    return [
        str(packages.programs / "codex"),
        "exec",
        *(["resume", "--last"] if number else []),
        *options,
        PROMPTS[number],
    ]


def claude_code(packages: Environment, environment: dict[str, str], url: str, project: Path, number: int) -> list[str]:
    environment |= exports("Claude Code", url) | {"DISABLE_AUTOUPDATER": "1", "ENABLE_TOOL_SEARCH": "true"}
    again = ["--continue"] if number else []
    return [str(packages.programs / "claude"), *again, "--allowedTools", "Bash,ToolSearch", "--print", PROMPTS[number]]


def opencode(packages: Environment, environment: dict[str, str], url: str, project: Path, number: int) -> list[str]:
    (project / "opencode.json").write_text(recipe("OpenCode", url))
    environment |= {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return [str(packages.programs / "opencode"), "run", *(["--continue"] if number else []), PROMPTS[number]]


AGENTS: dict[str, Run] = {"codex": codex, "claude-code": claude_code, "opencode": opencode}


def hold(name: str, relay: Relay, folder: Path) -> list[str]:
    """Have an agent go through its session; what its programs said that failed."""
    home, project = folder / "home", folder / "project"
    for made in (home, project):
        made.mkdir(parents=True)
    for file in ("CLAUDE.md", "AGENTS.md"):
        (project / file).write_text(REMINDER)
    said = []
    packages = BY_NAME[name].environment
    environment = kept_environment(home)
    try:
        for number in range(len(PROMPTS)):
            command = AGENTS[name](packages, environment, relay.url, project, number)
            ended = subprocess.run(
                command,
                cwd=project,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE,
                check=False,
            )
            if ended.returncode:
                said.append((ended.stdout + ended.stderr).decode(errors="replace")[-1_000:])
    except subprocess.TimeoutExpired as late:
        said.append(f"{late}: {(late.stdout or b'').decode(errors='replace')[-500:]}")
    finally:
        end_processes(home)
    return said


def kept_environment(home: Path) -> dict[str, str]:
    return {name: os.environ[name] for name in KEPT if name in os.environ} | {
        "HOME": str(home),
        "NO_PROXY": "127.0.0.1",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"of {', '.join(AGENTS)}")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write what they send into FOLDER")
    options = parser.parse_args()
    if unknown := set(options.agents) - set(AGENTS):
        parser.error(f"no such agent: {', '.join(sorted(unknown))}")
    faults = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sessions-")))
        servers = {name: stack.enter_context(serving(folder, file)) for name, file in TEMPLATES.items()}
        heads = ("agent", "turns", "requests", "with tool references", *(f"refused: {name}" for name in servers))
        say("| ", " | ".join(heads), " |")
        for name in options.agents or AGENTS:
            BY_NAME[name].environment.fetch()
            with Relay(servers, options.record and options.record / name) as relay:
                said = hold(name, relay, folder / name)
            found = faults_of(name, relay)
            refused = [sum(n for status, n in counted.items() if status != 200) for counted in relay.statuses.values()]
            cells = (name, relay.model.n_turns, relay.n_requests, relay.n_references, *refused)
            say("| ", " | ".join(map(str, cells)), " |", *(f"\n{line}" for line in (*found, *said)))
            faults += found
    return int(bool(faults))


def faults_of(name: str, relay: Relay) -> list[str]:
    found = list(relay.refusals)
    if relay.model.n_turns < TURNS:
        found.append(f"{name} came to {relay.model.n_turns} turns only")
    if name == "claude-code" and not relay.n_references:
        found.append("Claude Code's tool search has found nothing")
    return found


def say(*texts: str) -> None:
    """At once: a session takes a minute and more."""
    sys.stdout.write("".join(texts) + "\n")
    sys.stdout.flush()


def serving(folder: Path, template: str) -> AbstractContextManager[ServerProcess]:
    model = folder / "stdlib-coder.gguf"
    if not model.exists():
        write_patient_model(model)
    prompts = ("--ctx-size", str(CONTEXT), "--parallel", "1")  # an agent's prompts have 30,000 tokens
    options = ("--model", str(model), *prompts, "--chat-template-file", str(FOLDER / template))
    return ServerProcess(*options, environment=ENVIRONMENT).started()


if __name__ == "__main__":
    raise SystemExit(main())
