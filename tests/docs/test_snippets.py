"""Every command and every snippet of README and docs/ is run, or a comment above it says why not.

Commands that install, or that start a server, are not run: their options, extras and files are checked. So are those of
the blocks that say why they are not run.
"""

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from pyllmcancel.cli import command_parser
from pyllmcancel.errors import Error
from pyllmcancel.hub.known import SMOLLM2
from pyllmcancel.hub.wheels import NamedModel
from tests.clients.model import serving
from tests.clients.recipes import THERE
from tests.docs.snippets import ALL, DATA, OURS, PAGES, SHELL, Way, commands, program, way
from tests.support.http_process import LIMIT, WITH_SIGINT, ServerProcess, until
from tests.support.pages import ROOT, Block

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SHELL_BLOCKS = [block for block in ALL if block.language in SHELL]
RUN = [block for block in ALL if way(block) is Way.RUN]
# What a command's output must have, by a part of the command.
OUTPUTS = {
    "requests/story-1/cancel": r'(?=(.|\n)*"outcome": ?"cancelled")(?=(.|\n)*"code": ?"explicit")',
    # The clients are processes of their own, and on a busy machine the last one need not be the last to arrive.
    "X-Supersede: my-editor": r"(?=(.|\n)*499 )(?=(.|\n)*200  The three largest cit)",
    "grep -i x-draft": r"x-draft: past 40/40\s*\Z",
    "http://127.0.0.1:8000/metrics": r"pyllmcancel_cancel_latency_seconds_count",
}


LONG_ANSWERS = ("--n-predict", "2000", "--max-queue", "1000")


def sooner(code: str) -> str:
    """The block with half of its pauses: the packaged model is many times as fast as the pages' model."""
    return re.sub(r"\bsleep ([0-9.]+)", lambda pause: f"sleep {float(pause[1]) / 2}", code)


def only(blocks: list[Block], *languages: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in blocks if block.language in languages]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose answers go on until a limit, so that there is time to cancel them."""
    folder = tmp_path_factory.mktemp("models")
    with serving(folder, *LONG_ANSWERS, "--spec-type", "none", whole_prompts=True) as process:
        yield process


@pytest.fixture(scope="module")
def drafting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The same, with drafts, which are over too soon for a cancel."""
    with serving(tmp_path_factory.mktemp("models"), *LONG_ANSWERS, whole_prompts=True) as process:
        yield process


@pytest.fixture
def environment() -> dict[str, str]:
    """The reader's: the virtual environment is active, and nothing of the tests' is set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYLLMCANCEL_", "PYTHON"))}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


# -- all blocks -------------------------------------------------------------------------------------------------------


def test_every_block_is_tested_or_says_why_not() -> None:
    assert {way(block) for block in ALL} == set(Way)
    assert [str(block) for block in ALL if block.reason is not None and block.language not in (*SHELL, "python")] == []


def test_no_mark_is_left_without_a_block() -> None:
    for page in {block.page for block in ALL}:
        marked = sum(block.page == page and block.reason is not None for block in ALL)
        assert (ROOT / page).read_text("utf-8").count("<!-- not run: ") == marked, page


# -- commands that are not run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", only(SHELL_BLOCKS, *SHELL))
def test_commands_have_options_extras_and_files_that_there_are(block: Block) -> None:
    for command in commands(block):
        if program(command) == OURS:
            check_options(command[1:])
        if program(command) == "pip":
            check_install(command)
        for word in command:
            if re.match(r"deploy/\S*[./]", word):  # kubectl has names such as deploy/NAME
                assert (ROOT / word).exists()
        if command[:2] == ["python", "-m"] and command[2].startswith("tests."):
            assert (ROOT / command[2].replace(".", "/")).with_suffix(".py").exists()


# docs/command-line.md is made of the parser itself.
@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/command-line.md"])
def test_commands_within_sentences_have_options_that_there_are(page: str) -> None:
    for words in re.findall(rf"`(?:\.venv/bin/)?{OURS} ([a-z]+ [^`]+)`", (ROOT / page).read_text("utf-8")):
        check_options(shlex.split(words))


def check_options(words: list[str]) -> None:
    try:
        command_parser().parse_args(words)
    except SystemExit as error:  # also after --help
        if error.code:
            raise


def check_install(command: list[str]) -> None:
    for word in command:
        if extras := re.fullmatch(r"(?:\.|pyllmcancel)\[([\w,]+)\]", word):
            assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
        if option := re.fullmatch(r"--config-settings=cmake\.define\.(\w+)=\S+", word):
            assert any(option[1] in file.read_text("utf-8") for file in (ROOT / "cmake").glob("*.cmake"))


# -- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", only(ALL, *DATA))
def test_data_can_be_read(block: Block) -> None:
    match block.language:
        case "json":
            assert json.loads(block.code)
        case "toml":
            assert tomllib.loads(block.code)
        case "yaml":
            assert yaml.safe_load(block.code)
        case "vim":
            assert ast.literal_eval(block.code.replace("\n    \\", " ").partition(" = ")[2])


# -- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", only(RUN, "js"))
def test_scripts_for_node_are_well_formed(block: Block) -> None:
    """`python -m tests.clients` runs them."""
    node = shutil.which("node") or pytest.skip("node is not installed")
    subprocess.run([node, "--check", "--input-type=module", "-"], input=block.code, text=True, check=True)


@pytest.mark.parametrize("block", only([block for block in RUN if block.page == "docs/clients.md"], "python"))
def test_clients_can_be_made(block: Block) -> None:
    """Here, since each library takes seconds to import. `tests.clients` also has them ask."""
    exec(compile(block.code, str(block), "exec"), {})


@pytest.mark.parametrize("block", only([block for block in RUN if block.page != "docs/clients.md"], "python"))
def test_scripts_run(block: Block, server: ServerProcess, environment: dict[str, str], tmp_path: Path) -> None:
    code = block.code.replace(THERE, server.url)
    canceller = None
    if "cancelled:" in code and THERE in block.code:
        code = code.replace("max_tokens=500", "max_tokens=2000")  # more time for the cancel
        canceller = Canceller(server)
    script = [sys.executable, "-P", "-c", code]
    run = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    if canceller is not None:
        canceller.join()
        assert run.stdout.endswith("cancelled: explicit\n")


class Canceller(threading.Thread):
    """Cancels whatever runs, until it is joined."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self._url = server.url
        self._ends = threading.Event()
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=LIMIT) as client:
            while not self._ends.wait(0.02):
                for one in client.get("/v1/requests", params={"status": "running"}).json()["data"]:
                    client.post(f"/v1/requests/{one['id']}/cancel").raise_for_status()

    def join(self, timeout: float | None = None) -> None:
        self._ends.set()
        super().join(timeout)


# -- commands ---------------------------------------------------------------------------------------------------------


def shell(block: Block, server: ServerProcess, folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a block in a folder in which the virtual environment lies, as in a checkout."""
    (folder / ".venv").symlink_to(sys.prefix)
    script = ["/bin/bash", "-ec", sooner(block.code).replace(THERE, server.url)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", WITH_SIGINT, *script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )


def run_to_its_end(block: Block, server: ServerProcess, folder: Path, environment: dict[str, str]) -> None:
    with shell(block, server, folder, environment) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    for part, pattern in OUTPUTS.items():
        assert part not in block.code or re.search(pattern, output), output


@pytest.fixture(scope="module")
def smollm2() -> Iterator[ServerProcess]:
    try:
        path = NamedModel(SMOLLM2).fetch(lambda _: True)
    except Error as error:
        pytest.skip(f"SmolLM2 cannot be had: {error}")
    with ServerProcess("--model", str(path), "--ctx-size", "4096") as process:
        yield process.started()


def test_the_first_chat_has_the_pages_answer(
    smollm2: ServerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    """`python tools/test_levels.py -- tests/docs/test_snippets.py -k first_chat` asks builds for other processors."""
    (asked,) = [block for block in RUN if "capital of Japan" in block.code]
    (told,) = [json.loads(block.code) for block in ALL if block.language == "json" and "Tokyo" in block.code]
    with shell(asked, smollm2, tmp_path, environment) as process:
        output, _ = process.communicate()
    found = json.loads(output)
    assert found["choices"][0]["message"]["content"] == told["choices"][0]["message"]["content"]
    assert {name: found["usage"][name] for name in told["usage"]} == told["usage"]


STREAMS = [block for block in RUN if "curl -N" in block.code]
BENCHMARKS = [block for block in RUN if f"{OURS} bench" in block.code]
DRAFTS = [block for block in RUN if "x-draft" in block.code]
COMMANDS = [block for block in RUN if block not in (*STREAMS, *BENCHMARKS, *DRAFTS)]


@pytest.mark.parametrize("block", only(DRAFTS, *SHELL))
def test_commands_that_show_drafts_run(
    block: Block, drafting_server: ServerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    run_to_its_end(block, drafting_server, tmp_path, environment)


@pytest.mark.parametrize("block", only(COMMANDS, *SHELL))
def test_commands_run(block: Block, server: ServerProcess, environment: dict[str, str], tmp_path: Path) -> None:
    run_to_its_end(block, server, tmp_path, environment)


@pytest.mark.long
@pytest.mark.parametrize("block", only(BENCHMARKS, *SHELL))
def test_benchmarks_run(block: Block, server: ServerProcess, environment: dict[str, str], tmp_path: Path) -> None:
    run_to_its_end(block, server, tmp_path, environment)


@pytest.mark.parametrize("block", only(STREAMS, *SHELL))
def test_ctrl_c_ends_a_stream(block: Block, server: ServerProcess, environment: dict[str, str], tmp_path: Path) -> None:
    before = server.log.count("cancelled (disconnect) in decode")
    with shell(block, server, tmp_path, environment) as process:
        assert process.stdout is not None
        events = filter(lambda line: line.startswith("data: {"), process.stdout)
        next(events)  # a chat's first event has a role only, and may come before the prompt is computed
        next(events)
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.read()
    until(lambda: server.log.count("cancelled (disconnect) in decode"), lambda count: count > before)
