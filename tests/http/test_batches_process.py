"""Batches of real servers, by the official ``openai`` client: with one model and with several, killed in the middle."""

from __future__ import annotations

import math
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
    options: Any = {"endpoint": COMPLETIONS, "completion_window": "24h"} | fields
    return client.batches.create(input_file_id=file.id, **options).id


def until_results(client: openai.OpenAI, name: str, n: float) -> Any:
    """Wait until a batch has this number of results, or has ended."""
    return until(
        lambda: client.batches.retrieve(name),
        lambda batch: batch.status in ENDED or (batch.request_counts and batch.request_counts.completed >= n),
        2 * START_LIMIT,
    )


def until_ended(client: openai.OpenAI, name: str) -> Any:
    return until_results(client, name, math.inf)


def output_of(client: openai.OpenAI, batch: Any) -> dict[str, dict[str, Any]]:
    return results_in(client.files.content(batch.output_file_id).text)


def test_the_client_creates_lists_cancels_and_deletes(server: ServerProcess) -> None:
    with client_of(server) as client:
        name = begun(client, [line(n) for n in range(3)], metadata={"a": "b"})
        batch = until_ended(client, name)
        assert (batch.status, batch.request_counts.completed, batch.metadata) == ("completed", 3, {"a": "b"})
        assert sorted(output_of(client, batch)) == ["0", "1", "2"]
        endless = begun(client, [line("short"), *(line(n, max_tokens=30_000) for n in range(4))])
        until_results(client, endless, 1)
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
        model += ["--model", str(other), "--idle-loads"]
    names = ["long", "other"]
    options = (*model, "--ctx-size", "4096", "--parallel", "2", "--store", str(tmp_path / "store.db"))
    lines = [line(n, model=names[n % 2], max_tokens=150) for n in range(24)]
    batch_id, n_seen = "", 0
    for _ in range(2):
        with ServerProcess(*options) as server, client_of(server.started()) as client:
            batch_id = batch_id or begun(client, lines)
            batch = until_results(client, batch_id, n_seen + 4)
            assert batch.request_counts.completed >= n_seen
            n_seen = batch.request_counts.completed
            server.signal(signal.SIGKILL)
            server.wait()
    with ServerProcess(*options) as server, client_of(server.started()) as client:
        batch = until_ended(client, batch_id)
        output = output_of(client, batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", len(lines))
    assert sorted(output, key=int) == [str(n) for n in range(len(lines))]
    if several:
        assert [output[str(n)]["response"]["body"]["model"] for n in range(4)] == names * 2
