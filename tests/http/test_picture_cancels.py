"""Requests with pictures while these are encoded: cancels take effect at once, and without an effect on others."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyllmcancel.server.config import MediaSettings
from tests.support.fake_media import ROWS, MediaChunk, bytes_in
from tests.support.fake_native import MediaEncoder
from tests.support.feed_client import FeedClient
from tests.support.http_asgi import Exchange
from tests.support.http_process import until
from tests.support.http_world import CHAT, World, open_world
from tests.support.media_files import data_url, png

COMPLETION = "/completion"
RED, BLUE = png(), png(4, 4, colour=(0, 0, 250))
MINE = {"x-request-id": "mine", "x-supersede": "key"}
ENDS = ["disconnect", "explicit", "superseded", "session"]


def asking(picture: bytes = RED, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": "look:"}, {"type": "image_url", "image_url": {"url": data_url(picture)}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 4, "temperature": 0} | fields


class HeldEncoder(MediaEncoder):
    """An encoder that stops at its second node until it is let go."""

    def __init__(self) -> None:
        super().__init__(None)
        self.begun = threading.Event()
        self.go = threading.Event()
        self.on_encode = self._hold

    def _hold(self, _chunk: MediaChunk, node: int) -> None:
        if node == 2:
            self.begun.set()
            self.go.wait()


@asynccontextmanager
async def held(**options: Any) -> AsyncIterator[tuple[World, HeldEncoder]]:
    encoder = HeldEncoder()
    async with open_world(encoder=encoder, **options) as world:
        try:
            yield world, encoder
        finally:
            encoder.go.set()


async def end(world: World, exchange: Exchange, how: str) -> None:
    """Cancel the request `mine`, of the session `s`."""
    if how == "disconnect":
        exchange.leave()
    elif how == "session":
        assert (await world.post("/v1/sessions/s/cancel?wait=false")).status == 200
    else:
        await world.bring_about(how)


async def test_the_progress_of_a_prompt_says_that_its_picture_is_encoded() -> None:
    async with held() as (world, encoder):
        exchange = world.begin("POST", CHAT, asking(stream=True, return_progress=True))
        await exchange.until_body(b'"encoding": true')
        encoder.go.set()
        await exchange.end()
        told = [event["prompt_progress"] for event in exchange.json_events() if "prompt_progress" in event]
        total, encoding = told[0]["total"], [one["processed"] for one in told if "encoding" in one]
        # From the start on, also while the text before the picture is computed; and until the picture's rows are.
        assert encoding[0] == 0
        assert encoding[-1] < total - ROWS
        assert [one["processed"] for one in told if "encoding" not in one][-1] == total


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("how", ENDS)
async def test_a_picture_is_encoded_no_further_than_its_request_lives(how: str, stream: bool) -> None:
    async with held() as (world, encoder):
        alone = (await world.complete("beside", max_tokens=30, temperature=0).end()).json()["choices"]
        exchange = world.begin("POST", CHAT, asking(stream=stream), headers=MINE | {"x-session-id": "s"})
        await asyncio.to_thread(encoder.begun.wait)
        # Others are answered meanwhile, and get the same.
        assert (await world.complete("beside", max_tokens=30, temperature=0).end()).json()["choices"] == alone
        await end(world, exchange, how)
        await world.cancelling("mine")
        encoder.go.set()
        assert (await world.ended("mine"))["status"] == "cancelled"
        assert encoder.encoded == []
        await exchange.end()
        assert (b"cancelled" in exchange.body) == (how != "disconnect")
        assert b"[DONE]" not in exchange.body
        # Nothing of the cancelled one is left in the way of the next.
        assert ((await world.post(CHAT, asking())).status, len(encoder.encoded)) == (200, 1)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("how", ENDS)
async def test_a_file_is_decoded_no_further_than_its_request_lives(how: str, path: str) -> None:
    encoder = MediaEncoder(None)
    encoder.endless.add(RED)
    async with open_world(encoder=encoder) as world:
        body = asking()
        if path == COMPLETION:
            mark = (await world.get("/props")).json()["media_marker"]
            data = b64encode(RED).decode()
            body = {"prompt": {"prompt_string": mark, "multimodal_data": [data]}, "n_predict": 4}
        exchange = world.begin("POST", path, body, headers=MINE | {"x-session-id": "s"})
        await asyncio.to_thread(encoder.decoding.wait)
        await end(world, exchange, how)
        await exchange.end()
        assert exchange.status == (0 if how == "disconnect" else 499)
        await asyncio.to_thread(encoder.decoding_ended.wait)
        assert encoder.encoded == []
        assert (await world.post(CHAT, asking(BLUE))).status == 200


async def test_prepared_pictures_of_requests_have_a_limit() -> None:
    one = 16 * ROWS
    async with held(media=MediaSettings(max_prepared=one)) as (world, encoder):
        first = world.begin("POST", CHAT, asking())
        await asyncio.to_thread(encoder.begun.wait)
        full = await world.post(CHAT, asking(BLUE))
        assert full.failure == (429, "queue_full")
        assert full.headers["retry-after"] == "1"
        two = asking()["messages"] + asking(BLUE)["messages"]
        large = await world.post(CHAT, asking(messages=two))
        assert large.failure == (413, "media_too_large")
        assert "picture 2: " in large.json()["error"]["message"]
        encoder.go.set()
        await first.end()
        room = world.app.state.server.media_room
        await asyncio.to_thread(until, lambda: bytes_in(room), lambda held: held == 0)
        assert (first.status, (await world.post(CHAT, asking(BLUE))).status) == (200, 200)


async def test_a_prompt_with_pictures_that_is_too_long_is_told() -> None:
    async with open_world(encoder=MediaEncoder(None), n_ctx=64) as world:
        exchange = await world.post(CHAT, asking(messages=asking()["messages"] * 4))
        assert exchange.failure == (400, "context_length_exceeded")


async def test_the_texts_of_a_prompt_with_a_picture_are_shown_where_they_are_exposed() -> None:
    async with open_world(encoder=MediaEncoder(None), expose_prompts=True) as world:
        answer = (await world.post(CHAT, asking(verbose=True, return_tokens=True))).json()
        (seen,) = await world.requests("?status=finished")
        assert seen["prompt_tokens"] == answer["usage"]["prompt_tokens"]
        assert (await world.get("/slots")).status == 200
        feed = FeedClient(world)
        (before,) = (await feed.began())["requests"]
        await world.begin("POST", CHAT, asking(BLUE), headers={"x-request-id": "after"}).end()
        events = await feed.ended("after")
        (after,) = [told.data["request"] for told in events if told.type == "ended"]
        assert "look:" in answer["__verbose"]["prompt"]
        assert "look:" in before["prompt"]
        assert before["prompt"] == after["prompt"]
