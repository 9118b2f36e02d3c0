"""The application of ``docs/fastapi.md``, with uvicorn before a server: whoever leaves it has left the server, too."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.clients.model import serving
from tests.clients.recipes import THERE
from tests.support.http_process import CHAT, COMPLETIONS, LIMIT, SOON, RawClient, ServerProcess
from tests.support.pages import blocks

LONG = "def f():\n    return 1\n" * 6000  # tokens that take seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("models"), whole_prompts=True) as process:
        yield process


@pytest.fixture(scope="module")
def port(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("gateway")
    (code,) = [block.code for block in blocks("docs/fastapi.md") if block.language == "python"]
    (folder / "gateway.py").write_text(code.replace(THERE, server.url))
    command = [sys.executable, "-m", "uvicorn", "gateway:app", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = next(
                filter(None, (re.search(r"running on http://127.0.0.1:(\d+)", line) for line in process.stderr))
            )
            yield int(found[1])
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT)


def test_an_answer_is_passed_on(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT) as client:
        answer = client.post(COMPLETIONS, json={"prompt": "def ", "max_tokens": 4}, headers={"X-Request-Id": "one"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "one")
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert client.get("/v1/requests/one", params={"x": "y"}).json()["status"] == "finished"
        assert client.post(COMPLETIONS, json={"prompt": 1.5}).status_code == 400
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}
        with client.stream("POST", CHAT, json=body) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_leaving_the_application_leaves_the_server(server: ServerProcess, port: int, stream: bool, phase: str) -> None:
    with RawClient(port) as client:
        prompt = LONG if phase == "prefill" else "def "
        request = client.post(COMPLETIONS, prompt=prompt, max_tokens=50_000, ignore_eos=True, stream=stream)
        server.wait_for(request, phase=phase, status="running")
        left_at = client.leave("close")
    seen = server.wait_for(request, status="cancelled")
    assert (seen["cancel_reason"], seen["phase"]) == ("disconnect", phase)
    assert seen["created"] + seen["seconds"] - left_at < SOON
