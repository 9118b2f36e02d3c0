"""Batches of real servers, by the official ``openai`` client: with one model and with several, killed in the middle."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.batches import COMPLETIONS, jsonl, line, results_in
from tests.support.http_process import START_LIMIT, ServerProcess, until

pytestmark = pytest.mark.long
ENDED = ("completed", "failed", "expired", "cancelled")


@contextmanager
def client_of(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def begun(client: openai.OpenAI, lines: list[Any], **fields: Any) -> str:
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    options = {"endpoint": COMPLETIONS, "completion_window": "24h"} | fields
    return client.batches.create(input_file_id=file.id, **options).id  # type: ignore[arg-type]


def until_ended(client: openai.OpenAI, name: str) -> Any:
    return until(lambda: client.batches.retrieve(name), lambda batch: batch.status in ENDED, START_LIMIT)


def output_of(client: openai.OpenAI, batch: Any) -> dict[str, dict[str, Any]]:
    return results_in(client.files.content(batch.output_file_id).text)


def test_the_client_creates_lists_cancels_and_deletes(server: ServerProcess) -> None:
    with client_of(server) as client:
        name = begun(client, [line(n) for n in range(3)], metadata={"a": "b"})
        batch = until_ended(client, name)
        assert (batch.status, batch.request_counts.completed, batch.metadata) == ("completed", 3, {"a": "b"})
        assert sorted(output_of(client, batch)) == ["0", "1", "2"]
        endless = begun(client, [line("short"), *(line(n, max_tokens=30_000) for n in range(4))])
        until(lambda: client.batches.retrieve(endless), lambda one: one.request_counts.completed == 1)
        assert client.batches.cancel(endless).status in ("cancelling", "cancelled")
        batch = until_ended(client, endless)
        assert (batch.status, list(output_of(client, batch))) == ("cancelled", ["short"])
        assert [one.id for one in client.batches.list(limit=1)][:2] == [endless, name]
        files = [one.id for one in client.files.list(purpose="batch_output")]
        assert batch.output_file_id in files
        assert all(client.files.delete(one).deleted for one in files)
        with pytest.raises(openai.NotFoundError):
            client.files.content(batch.output_file_id)


@pytest.mark.parametrize("several", [False, True])
def test_a_killed_server_loses_no_result_and_has_none_twice(several: bool, long_model: Path, tmp_path: Path) -> None:
    model = ["--model", str(long_model)]
    if several:
        other = tmp_path / "other.gguf"
        other.write_bytes(long_model.read_bytes())
        model += ["--model", str(other)]
    names = ["long", "other"]
    options = (*model, "--ctx-size", "4096", "--parallel", "2", "--store", str(tmp_path / "store.db"))
    lines = [line(n, model=names[n % 2], max_tokens=150) for n in range(40)]
    name, seen, n_kills = "", 0, 0
    while True:
        with ServerProcess(*options) as server, client_of(server.started()) as client:
            name = name or begun(client, lines)
            wanted = min(seen + 8, len(lines)) if n_kills < 3 else len(lines)
            batch = until(
                lambda: client.batches.retrieve(name),
                lambda one: one.status in ENDED or (n_kills < 3 and one.request_counts.completed >= wanted),
                START_LIMIT,
            )
            assert batch.request_counts.completed >= seen
            if batch.status in ENDED:
                output = output_of(client, batch)
                break
            seen, n_kills = batch.request_counts.completed, n_kills + 1
            server.signal(signal.SIGKILL)
            server.wait()
    assert (batch.status, n_kills) == ("completed", 3)
    assert sorted(output, key=int) == [str(n) for n in range(len(lines))]
    if several:
        assert [output[str(n)]["response"]["body"]["model"] for n in range(4)] == names * 2
