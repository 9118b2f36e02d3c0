"""Pictures and sounds in bodies: what reaches the engine of each dialect's forms, and what is refused, and how."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.errors import MediaError
from pyllmcancel.media.values import MediaKind, Modality
from pyllmcancel.pausing import Pause
from pyllmcancel.server.config import MediaSettings
from pyllmcancel.server.limits import PREPARERS
from pyllmcancel.server.media import sources
from pyllmcancel.server.media.fetching import Fetcher
from tests.support import media_library
from tests.support.http_world import World, open_world
from tests.support.media_files import data_url, gif, mp3, png, wav
from tests.support.media_library import RecordingLibrary, seeing

world, library = media_library.world, media_library.library
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
COMPLETION = "/completion"
RED, BLUE = png(), png(4, 4, colour=(0, 0, 250))
SOUND = wav()
TEXT = {"type": "text", "text": "what is this?"}
RED_URL = {"type": "image_url", "image_url": {"url": data_url(RED)}}
BLUE_URL = {"type": "image_url", "image_url": {"url": data_url(BLUE)}}
AUDIO = {"type": "input_audio", "input_audio": {"data": b64encode(SOUND).decode(), "format": "wav"}}
BASE64 = {"type": "base64", "media_type": "image/png", "data": b64encode(RED).decode()}
BLOCK = {"type": "image", "source": BASE64}
INPUT = {"type": "input_image", "image_url": data_url(RED)}
SEEN = f"[image of {len(RED)}]"
CALL = {"id": "c", "type": "function", "function": {"name": "screenshot", "arguments": "{}"}}


def chat(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 2} | fields


async def refused(world: World, path: str, body: dict[str, Any], *said: Any) -> None:
    """Check the status of a refusal, the beginning of the name of its field, and words of its message."""
    status, param, words = said
    exchange = await world.post(path, body)
    error = exchange.json()["error"]
    assert exchange.status == status, exchange.body
    assert (error["param"] or "").startswith(param)
    assert words in error["message"]


# -- forms ------------------------------------------------------------------------------------------------------------


def image(url: str, **fields: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url} | fields}


def sound(**fields: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": fields}


def items(*given: Any) -> dict[str, Any]:
    """A body for responses: items, or the parts of one message."""
    parts = [one for one in given if one["type"].startswith("input_")]
    return {"input": [{"role": "user", "content": parts}] if parts else list(given), "max_output_tokens": 2}


def looked(result: dict[str, Any], *after: Any) -> dict[str, Any]:
    """A body for messages that ends with a tool's result."""
    call = {"type": "tool_use", "id": "c", "name": "screenshot", "input": {}}
    told = {"type": "tool_result", "tool_use_id": "c"} | result
    turns = [("user", "look"), ("assistant", [call]), ("user", [told, *after])]
    return {"messages": [{"role": role, "content": content} for role, content in turns], "max_tokens": 2}


TOOLS_RESULT = [
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": [TEXT, RED_URL]},
]
OF_CODEX = items(
    {"type": "message", "role": "user", "content": "look"},
    {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "here"}, INPUT]},
)
MP3 = b64encode(mp3(10)).decode()
HEARD = f"[audio of {len(SOUND)}]"
FORMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a picture behind a text": (CHAT, chat(TEXT, RED_URL), f"user\nwhat is this?{SEEN}<|im_end|>"),
    "a picture before a text": (CHAT, chat(RED_URL, TEXT), f"user\n{SEEN}what is this?<|im_end|>"),
    "texts side by side": (CHAT, chat(TEXT, TEXT, RED_URL), f"what is this?\nwhat is this?{SEEN}<|im_end|>"),
    "two pictures": (CHAT, chat(RED_URL, TEXT, BLUE_URL), f"{SEEN}what is this?[image of {len(BLUE)}]"),
    "the same twice": (CHAT, chat(RED_URL, RED_URL), f"{SEEN}{SEEN}"),
    "a url that is a text": (CHAT, chat({"type": "image_url", "image_url": data_url(RED)}), SEEN),
    "base64 alone": (CHAT, chat(image(BASE64["data"])), SEEN),
    "a detail": (CHAT, chat(image(data_url(RED), detail="high")), SEEN),
    "a sound": (CHAT, chat(TEXT, AUDIO), f"what is this?{HEARD}"),
    "a sound by url": (CHAT, chat(sound(url=data_url(SOUND, "audio/wav"))), HEARD),
    "a gif": (CHAT, chat(image(data_url(gif(), "image/gif"))), f"[image of {len(gif())}]"),
    "a bare mp3": (CHAT, chat(sound(data=MP3, format="mp3")), f"[audio of {len(mp3(10))}]"),
    "a tool's result": (CHAT, chat(messages=TOOLS_RESULT), f"what is this?{SEEN}"),
    "an image block": (MESSAGES, chat(BLOCK, TEXT), f"user\n{SEEN}what is this?<|im_end|>"),
    "blocks in their order": (MESSAGES, chat(TEXT, TEXT, BLOCK, TEXT), f"?\nwhat is this?{SEEN}what is this?"),
    "a screenshot of Claude Code": (MESSAGES, looked({"content": [TEXT, BLOCK]}, TEXT), f"what is this?{SEEN}"),
    "a failed tool with a screenshot": (MESSAGES, looked({"is_error": True, "content": [BLOCK]}), f"Error: {SEEN}"),
    "an input image": (RESPONSES, items({"type": "input_text", "text": "a"}, INPUT), f"user\na{SEEN}<|im_end|>"),
    "an input audio": (RESPONSES, items(AUDIO), HEARD),
    "a screenshot of Codex": (RESPONSES, OF_CODEX, f"here{SEEN}"),
}


@pytest.mark.parametrize("name", FORMS)
async def test_a_picture_stands_where_the_client_has_put_it(world: World, library: RecordingLibrary, name: str) -> None:
    path, body, expected = FORMS[name]
    await world.served(path, body)
    assert expected in library.prompt


async def test_the_tokens_of_pictures_are_counted(world: World) -> None:
    body = chat(BLOCK)
    used = (await world.post(MESSAGES, body)).json()["usage"]
    counted = (await world.post(f"{MESSAGES}/count_tokens", body)).json()["input_tokens"]
    assert counted == used["input_tokens"] + used["cache_read_input_tokens"]
    for path in (f"{CHAT}/input_tokens", "/chat/completions/input_tokens"):
        assert (await world.post(path, chat(RED_URL))).json()["input_tokens"] == counted
    assert (await world.post(f"{RESPONSES}/input_tokens", items(INPUT))).json()["input_tokens"] == counted


async def test_a_stored_response_goes_on_with_its_pictures(world: World, library: RecordingLibrary) -> None:
    first = (await world.post(RESPONSES, FORMS["a screenshot of Codex"][1])).json()
    listed = (await world.get(f"{RESPONSES}/{first['id']}/input_items?order=asc")).json()["data"]
    assert listed[2]["output"][1]["image_url"] == data_url(RED)
    library.given.clear()
    more = {"input": "and now?", "previous_response_id": first["id"], "max_output_tokens": 2}
    assert (await world.post(RESPONSES, more)).status == 200
    assert f"here{SEEN}" in library.prompt


# -- llama-server's own -----------------------------------------------------------------------------------------------


async def marker_of(world: World) -> str:
    return (await world.get("/props")).json()["media_marker"]


async def test_a_prompt_has_a_picture_at_the_servers_marker(world: World, library: RecordingLibrary) -> None:
    prompt = {"prompt_string": f"this: {await marker_of(world)}\n", "multimodal_data": [BASE64["data"]]}
    await world.served(COMPLETION, {"prompt": prompt, "n_predict": 2})
    assert library.prompt == f"this: {SEEN}\n"


async def test_several_prompts_have_their_own_pictures_and_sounds(world: World, library: RecordingLibrary) -> None:
    mark = await marker_of(world)
    sound = b64encode(SOUND).decode()
    prompts = [
        "plain",
        {"prompt_string": f"{mark} and {mark}", "multimodal_data": [sound, data_url(BLUE)]},
        {"prompt_string": mark, "multimodal_data": [BASE64["data"]]},
    ]
    await world.served(COMPLETION, {"prompt": prompts, "n_predict": 2})
    kinds = [[one.kind for one in media] for _, media in library.given]
    assert kinds == [[MediaKind.AUDIO, MediaKind.IMAGE], [MediaKind.IMAGE]]


@pytest.mark.parametrize(
    ("text", "data", "words"),
    [
        ("no mark", "AAAA", "0 times, but multimodal_data has 1"),
        ("{0}{0}", "AAAA", "2 times, but multimodal_data has 1"),
        ("{0}", "malformed", "picture or sound 1: neither a URL nor valid base64"),
        ("{0}", "", "picture or sound 1: it is empty"),
        ("{0}", "AAAA", "picture or sound 1: this format is not supported"),
    ],
)
async def test_a_prompt_with_other_marks_than_data_is_refused(
    world: World, library: RecordingLibrary, text: str, data: str, words: str
) -> None:
    prompt = {"prompt_string": text.format(await marker_of(world)), "multimodal_data": [data]}
    await refused(world, COMPLETION, {"prompt": prompt}, 400, "prompt", words)
    assert library.given == []


async def test_the_template_is_shown_with_the_servers_marker(world: World, library: RecordingLibrary) -> None:
    shown = (await world.post("/apply-template", chat(TEXT, RED_URL, BLUE_URL))).json()["prompt"]
    mark = await marker_of(world)
    assert f"what is this?{mark}{mark}<|im_end|>" in shown
    assert library.given == []


async def test_what_the_model_takes_is_told() -> None:
    async with seeing(Modality.AUDIO) as (world, _):
        assert (await world.get("/props")).json()["modalities"] == {"vision": False, "video": False, "audio": True}
        (model,) = (await world.get("/v1/models")).json()["models"]
        assert model["capabilities"] == ["completion", "multimodal"]
    async with open_world() as world:
        assert not any((await world.get("/props")).json()["modalities"].values())
        (model,) = (await world.get("/models")).json()["models"]
        assert model["capabilities"] == ["completion"]


# -- texts ------------------------------------------------------------------------------------------------------------


async def test_no_text_becomes_a_picture(world: World, library: RecordingLibrary) -> None:
    mark = await marker_of(world)
    texts = [f"{mark} <__media__> <image>", f"<__media_{'0' * 32}__>"]
    await world.served(CHAT, chat(*texts, RED_URL))
    ((text, media),) = library.given
    assert text.count(library.marker) == len(media) == 1
    assert mark in text


# -- refusals ---------------------------------------------------------------------------------------------------------

ASKING = {
    CHAT: (chat(TEXT, RED_URL), "messages"),
    MESSAGES: (chat(BLOCK), "messages"),
    f"{MESSAGES}/count_tokens": ({"messages": [{"role": "user", "content": [BLOCK]}]}, "messages"),
    RESPONSES: (items(INPUT), "input"),
    COMPLETION: ({"prompt": {"prompt_string": "{mark}", "multimodal_data": [BASE64["data"]]}}, "prompt"),
    "/apply-template": (chat(TEXT, RED_URL), "messages"),
}


async def asked_of(world: World, path: str) -> tuple[dict[str, Any], str]:
    body, param = ASKING[path]
    if path == COMPLETION:
        body = {"prompt": body["prompt"] | {"prompt_string": await marker_of(world)}}
    return body, param


@pytest.mark.parametrize("path", ASKING)
async def test_a_model_without_a_projector_says_so(path: str) -> None:
    async with open_world() as world:
        body, param = await asked_of(world, path)
        await refused(world, path, body, 400, param, "without a projector (--mmproj)")


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, COMPLETION])
async def test_a_limit_of_a_picture_is_told_in_the_dialects_shape(path: str) -> None:
    async with seeing(media=MediaSettings(max_pixels=16)) as (world, library):
        body, param = await asked_of(world, path)
        await refused(world, path, body, 413, param, "1: it has 8 x 8 pixels, but at most 16")
        error = (await world.post(path, body)).json()["error"]
        assert error["type"] == ("request_too_large" if path == MESSAGES else "invalid_request_error")
        assert library.given == []


OMITS = "{% for message in messages[1:] %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("options", "body", "said"),
    [
        ({}, chat(RecordingLibrary.marker, RED_URL), (400, "messages", "")),
        ({}, chat(*[RED_URL] * 500), (413, "", "at most 100 pictures and sounds, not 500")),
        ({}, chat(RED_URL, truncate_prompt_tokens=5), (400, "truncate_prompt_tokens", "")),
        ({"chat_template": OMITS}, chat(RED_URL), (400, "", "omits a picture")),
    ],
)
async def test_a_conversation_that_cannot_have_its_pictures_is_refused(
    options: dict[str, Any], body: dict[str, Any], said: tuple[int, str, str]
) -> None:
    async with seeing(**options) as (world, library):
        await refused(world, CHAT, body, *said)
        assert library.given == []


async def test_neither_a_text_nor_a_refusal_waits_for_pictures_that_are_decoded() -> None:
    async with seeing(media=MediaSettings(max_pixels=100)) as (world, library):
        may_end = threading.Event()
        library.on_prepare = lambda _pause: may_end.wait()
        decoding = [asyncio.create_task(world.post(CHAT, chat(RED_URL))) for _ in range(PREPARERS + 1)]
        try:
            large = image(data_url(png(11, 10)))
            assert (await world.post(CHAT, chat(large))).status == 413
            assert (await world.post(CHAT, chat(TEXT))).status == 200
        finally:
            may_end.set()
        assert [exchange.status for exchange in await asyncio.gather(*decoding)] == [200] * len(decoding)


async def test_a_source_is_read_once_and_the_engine_gets_its_bytes_and_its_owner(
    world: World, library: RecordingLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_read = []
    read = sources.read
    monkeypatch.setattr(sources, "read", lambda source, settings: (n_read.append(1), read(source, settings))[1])
    assert (await world.post(CHAT, chat(RED_URL, AUDIO))).status == 200
    ((_, (picture, sound)),) = library.given
    assert (picture.kind, picture.data, sound.kind, sound.data) == (MediaKind.IMAGE, RED, MediaKind.AUDIO, SOUND)
    assert (len(n_read), library.owners) == (2, [""])


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_pictures_too_large_by_header_are_refused_undecoded(
    world: World, library: RecordingLibrary, path: str
) -> None:
    library.n_least = 5_000
    body, param = ASKING[path]
    exchange = await world.post(path, body)
    assert exchange.failure == (400, "context_length_exceeded")
    assert exchange.json()["error"]["param"] == param
    assert library.given == []
    await world.served(f"{MESSAGES}/count_tokens", {"messages": [{"role": "user", "content": [BLOCK]}]})


FOREIGN_FORMS: list[tuple[str, dict[str, Any], str]] = [
    (MESSAGES, {"content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}, "'file'"),
    (MESSAGES, {"content": [{"type": "image", "source": {"type": "url", "url": "file:///x"}}]}, "url"),
    (MESSAGES, {"role": "assistant", "content": [BLOCK]}, "'image' is the user's"),
    (RESPONSES, {"content": [{"type": "input_image", "file_id": "f"}]}, "file_id"),
    (RESPONSES, {"content": [{"type": "input_file", "file_id": "f"}]}, "'input_file'"),
    (RESPONSES, {"role": "assistant", "content": [INPUT]}, "the model's own"),
]
BAD_PARTS: list[tuple[dict[str, Any], int, str]] = [
    (image(data_url(gif(65_535, 65_535))), 413, "65,535 x 65,535"),
    (image(data_url(b"<svg/>", "image/svg+xml")), 400, "SVG"),
    (sound(data=data_url(RED)), 400, "sound 2: this format"),
    (sound(), 400, "it is empty"),
    ({"type": "image_url"}, 400, "image_url"),
    ({"type": "image_url", "image_url": {}}, 400, "url"),
    ({"type": "image_url", "image_url": 7}, 400, "image_url"),
    ({"type": "input_audio", "input_audio": "x"}, 400, "input_audio"),
    ({"type": "file", "file": {"file_id": "f"}}, 400, "'file' is not supported"),
    ({"type": "video_url", "video_url": {"url": "x"}}, 400, "'video_url' is not supported"),
]


def turn(path: str, message: dict[str, Any]) -> dict[str, Any]:
    """A body of one message, by default the user's."""
    field = "input" if path == RESPONSES else "messages"
    return {field: [{"role": "user"} | message]} | ({"max_tokens": 2} if path == MESSAGES else {})


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [(CHAT, chat(RED_URL, TEXT, part), status, words) for part, status, words in BAD_PARTS]
    + [(path, turn(path, message), 400, words) for path, message, words in FOREIGN_FORMS],
)
async def test_a_bad_part_is_refused_in_words(path: str, body: dict[str, Any], status: int, words: str) -> None:
    settings = MediaSettings(max_bytes=10_000, max_seconds=2.0)
    async with seeing(media=settings) as (world, library):
        await refused(world, path, body, status, "input" if path == RESPONSES else "messages", words)
        assert library.given == []
        assert (await world.post(CHAT, chat("and now?"))).status == 200


async def test_a_projector_without_eyes_takes_sounds_only() -> None:
    async with seeing(Modality.AUDIO) as (world, _):
        assert (await world.post(CHAT, chat(AUDIO))).status == 200
        await refused(world, CHAT, chat(RED_URL), 400, "", "takes no pictures")


async def test_a_picture_that_the_decoder_refuses_is_named_by_place(world: World, library: RecordingLibrary) -> None:
    def refuse(_pause: Pause) -> None:
        raise MediaError("it has no pixels", 1)

    library.on_prepare = refuse
    await refused(world, CHAT, chat(RED_URL, TEXT, BLUE_URL), 400, "", "picture 2: it has no pixels")


# -- files and urls ---------------------------------------------------------------------------------------------------


async def test_a_file_below_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    async with seeing(media=MediaSettings(path=tmp_path)) as (world, library):
        assert (await world.post(CHAT, chat(image("file://red.png")))).status == 200
        assert SEEN in library.prompt
        await refused(world, CHAT, chat(image("file://../x")), 400, "", "there is no file")


class Web:
    """A server of pictures on this machine, which stands for the public network."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        self.answers = True  # False: it sends the head only
        self.port = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked.set()
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(RED)}\r\n\r\n".encode())
            if self.answers:
                writer.write(RED)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            self.left.set()

    @property
    def part(self) -> dict[str, Any]:
        return image(f"http://pictures.test:{self.port}/red.png")


@asynccontextmanager
async def fetching(max_bodies: int = 1 << 20, **settings: Any) -> AsyncIterator[tuple[World, RecordingLibrary, Web]]:
    """A server that fetches from a `Web`, whatever the name is."""
    web = Web()

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    async with (
        await asyncio.start_server(web.take, "127.0.0.1", 0) as listening,
        seeing(max_bodies=max_bodies, media=MediaSettings(urls=True, **settings)) as (world, library),
    ):
        web.port = listening.sockets[0].getsockname()[1]
        max_bytes = world.app.state.server.config.media.max_bytes
        world.app.state.server.fetcher = Fetcher(max_bytes, resolve, lambda address: address == "127.0.0.1")
        yield world, library, web


async def test_a_picture_is_fetched() -> None:
    async with fetching() as (world, library, web):
        await world.served(CHAT, chat(TEXT, web.part, BLUE_URL))
        assert f"what is this?{SEEN}[image of {len(BLUE)}]" in library.prompt
        block = {"type": "image", "source": {"type": "url", "url": web.part["image_url"]["url"]}}
        library.given.clear()
        body = {"messages": [{"role": "user", "content": [block]}], "max_tokens": 2}
        assert (await world.post(MESSAGES, body)).status == 200
        assert SEEN in library.prompt


async def test_a_picture_that_does_not_come_is_given_up() -> None:
    async with fetching(fetch_timeout=0.05) as (world, _, web):
        web.answers = False
        await refused(world, CHAT, chat(web.part), 400, "", "picture 1: it could not be fetched within 0.05 s")
        if web.asked.is_set():  # on a busy machine the time may be over before
            await web.left.wait()


async def test_fetched_bytes_and_files_of_this_machine_count_as_the_bodys(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    async with fetching(max_bodies=1, path=tmp_path) as (world, _, web):
        assert (await world.post(CHAT, chat(RED_URL))).status == 200
        for part in (web.part, image("file://red.png")):
            assert (await world.post(CHAT, chat(part))).failure == (503, "busy")


@pytest.mark.parametrize(
    ("reason", "status"), [("disconnect", 0), ("explicit", 499), ("superseded", 499), ("shutdown", 503)]
)
async def test_a_fetch_ends_with_its_request(reason: str, status: int) -> None:
    async with fetching(fetch_timeout=60.0) as (world, library, web):
        web.answers = False
        exchange = world.begin("POST", CHAT, chat(web.part), headers={"x-request-id": "mine", "x-supersede": "key"})
        await web.asked.wait()
        (listed,) = await world.requests()
        assert (listed["id"], listed["status"]) == ("mine", "waiting")
        # Others are answered meanwhile.
        assert (await world.post(CHAT, chat("hello"))).status == 200
        if reason == "disconnect":
            exchange.leave()
        await world.bring_about(reason)
        await web.left.wait()
        assert (await exchange.end()).status == status
        assert library.given == []
