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
from pyllmcancel.server.limits import PREPARERS
from pyllmcancel.server.media import sources
from pyllmcancel.server.media.fetching import Fetcher
from pyllmcancel.server.media.settings import MediaSettings
from tests.support import media_library
from tests.support.http_asgi import Exchange
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


def error_of(exchange: Exchange) -> dict[str, Any]:
    return exchange.json()["error"]


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
    "blocks in their order": (
        MESSAGES,
        chat(TEXT, TEXT, BLOCK, TEXT),
        f"?\nwhat is this?{SEEN}what is this?<|im_end|>",
    ),
    "a screenshot of Claude Code": (MESSAGES, looked({"content": [TEXT, BLOCK]}, TEXT), f"what is this?{SEEN}"),
    "a failed tool with a screenshot": (MESSAGES, looked({"is_error": True, "content": [BLOCK]}), f"Error: {SEEN}"),
    "an input image": (
        RESPONSES,
        items({"type": "input_text", "text": "what?"}, INPUT),
        f"user\nwhat?{SEEN}<|im_end|>",
    ),
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
        ("no mark", ["AAAA"], "0 times, but multimodal_data has 1"),
        ("{0}{0}", ["AAAA"], "2 times, but multimodal_data has 1"),
        ("{0}", ["malformed"], "picture or sound 1: neither a URL nor valid base64"),
        ("{0}", [""], "picture or sound 1: it is empty"),
        ("{0}", ["AAAA"], "picture or sound 1: this format is not supported"),
    ],
)
async def test_a_prompt_with_other_marks_than_data_is_refused(
    world: World, library: RecordingLibrary, text: str, data: list[str], words: str
) -> None:
    prompt = {"prompt_string": text.format(await marker_of(world)), "multimodal_data": data}
    exchange = await world.post(COMPLETION, {"prompt": prompt})
    assert exchange.status == 400
    assert words in error_of(exchange)["message"]
    assert error_of(exchange)["param"] == "prompt"
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


async def test_a_text_with_the_engines_own_mark_is_refused(world: World, library: RecordingLibrary) -> None:
    exchange = await world.post(CHAT, chat(library.marker, RED_URL))
    assert (exchange.status, error_of(exchange)["param"]) == (400, "messages")


async def test_a_template_that_omits_a_picture_is_told() -> None:
    omits = "{% for message in messages[1:] %}{{ message.content }}{% endfor %}"
    async with seeing(chat_template=omits) as (world, _):
        exchange = await world.post(CHAT, chat(RED_URL))
        assert exchange.status == 400
        assert "omits a picture" in error_of(exchange)["message"]


# -- refusals ---------------------------------------------------------------------------------------------------------

ASKING = {
    CHAT: (chat(TEXT, RED_URL), "messages"),
    MESSAGES: (chat(BLOCK), "messages"),
    f"{MESSAGES}/count_tokens": ({"messages": [{"role": "user", "content": [BLOCK]}]}, "messages"),
    RESPONSES: (items(INPUT), "input"),
    COMPLETION: ({"prompt": {"prompt_string": "{mark}", "multimodal_data": [BASE64["data"]]}}, "prompt"),
    "/apply-template": (chat(TEXT, RED_URL), "messages"),
}


async def asked_of(world: World, path: str) -> tuple[Exchange, str]:
    body, param = ASKING[path]
    if path == COMPLETION:
        body = {"prompt": body["prompt"] | {"prompt_string": await marker_of(world)}}
    return await world.post(path, body), param


@pytest.mark.parametrize("path", ASKING)
async def test_a_model_without_a_projector_says_so(path: str) -> None:
    async with open_world() as world:
        exchange, param = await asked_of(world, path)
        assert exchange.status == 400, exchange.body
        assert "without a projector (--mmproj)" in error_of(exchange)["message"]
        assert error_of(exchange)["param"] == param


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, COMPLETION])
async def test_a_limit_of_a_picture_is_told_in_the_dialects_shape(path: str) -> None:
    async with seeing(media=MediaSettings(max_pixels=16)) as (world, library):
        exchange, param = await asked_of(world, path)
        assert exchange.status == 413, exchange.body
        error = error_of(exchange)
        assert "1: it has 8 x 8 pixels, but at most 16" in error["message"]
        assert error["param"] == param
        assert error["type"] == ("request_too_large" if path == MESSAGES else "invalid_request_error")
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


async def test_pictures_too_large_by_header_are_refused_undecoded(world: World, library: RecordingLibrary) -> None:
    library.n_least = 5_000
    for path, body, param in (
        (CHAT, chat(RED_URL), "messages"),
        (RESPONSES, items(INPUT), "input"),
        (MESSAGES, chat(BLOCK), "messages"),
    ):
        exchange = await world.post(path, body)
        assert exchange.failure == (400, "context_length_exceeded")
        assert exchange.json()["error"]["param"] == param
    assert library.given == []
    await world.served(f"{MESSAGES}/count_tokens", {"messages": [{"role": "user", "content": [BLOCK]}]})


@pytest.mark.parametrize(
    ("part", "status", "words"),
    [
        (image(data_url(gif(65_535, 65_535))), 413, "65,535 x 65,535"),
        (image(data_url(b"<svg/>", "image/svg+xml")), 400, "SVG"),
        ({"type": "input_audio", "input_audio": {"data": data_url(RED)}}, 400, "sound 2: this format"),
        ({"type": "input_audio", "input_audio": {}}, 400, "it is empty"),
        ({"type": "image_url"}, 400, "image_url"),
        ({"type": "image_url", "image_url": {}}, 400, "url"),
        ({"type": "image_url", "image_url": 7}, 400, "image_url"),
        ({"type": "input_audio", "input_audio": "x"}, 400, "input_audio"),
        ({"type": "file", "file": {"file_id": "f"}}, 400, "'file' is not supported"),
        ({"type": "video_url", "video_url": {"url": "x"}}, 400, "'video_url' is not supported"),
    ],
)
async def test_a_bad_part_is_refused_in_words(part: dict[str, Any], status: int, words: str) -> None:
    settings = MediaSettings(max_bytes=10_000, max_seconds=2.0)
    async with seeing(media=settings) as (world, library):
        exchange = await world.post(CHAT, chat(RED_URL, TEXT, part))
        assert exchange.status == status, exchange.body
        assert words in error_of(exchange)["message"]
        assert error_of(exchange)["param"].startswith("messages")
        assert library.given == []
        assert (await world.post(CHAT, chat("and now?"))).status == 200


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (MESSAGES, {"content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}, "'file'"),
        (MESSAGES, {"content": [{"type": "image", "source": {"type": "url", "url": "file:///x"}}]}, "url"),
        (MESSAGES, {"role": "assistant", "content": [BLOCK]}, "'image' is the user's"),
        (RESPONSES, {"content": [{"type": "input_image", "file_id": "f"}]}, "file_id"),
        (RESPONSES, {"content": [{"type": "input_file", "file_id": "f"}]}, "'input_file'"),
        (RESPONSES, {"role": "assistant", "content": [INPUT]}, "the model's own"),
    ],
)
async def test_forms_of_others_are_refused_in_words(world: World, path: str, body: dict[str, Any], words: str) -> None:
    field = "messages" if path == MESSAGES else "input"
    exchange = await world.post(
        path, {field: [{"role": "user"} | body]} | ({"max_tokens": 2} if path == MESSAGES else {})
    )
    assert exchange.status == 400, exchange.body
    assert words in error_of(exchange)["message"]


async def test_hundreds_of_pictures_are_refused_by_their_number(world: World, library: RecordingLibrary) -> None:
    exchange = await world.post(CHAT, chat(*[RED_URL] * 500))
    assert exchange.status == 413
    assert "at most 100 pictures and sounds, not 500" in error_of(exchange)["message"]
    assert library.given == []


async def test_a_projector_without_eyes_takes_sounds_only() -> None:
    async with seeing(Modality.AUDIO) as (world, _):
        assert (await world.post(CHAT, chat(AUDIO))).status == 200
        exchange = await world.post(CHAT, chat(RED_URL))
        assert (exchange.status, "takes no pictures" in error_of(exchange)["message"]) == (400, True)


async def test_a_picture_that_the_decoder_refuses_is_named_by_place(world: World, library: RecordingLibrary) -> None:

    def refuse(_pause: Pause) -> None:
        raise MediaError("it has no pixels", 1)

    library.on_prepare = refuse
    exchange = await world.post(CHAT, chat(RED_URL, TEXT, BLUE_URL))
    assert (exchange.status, error_of(exchange)["message"]) == (400, "picture 2: it has no pixels")


async def test_a_conversation_with_pictures_is_not_truncated(world: World) -> None:
    exchange = await world.post(CHAT, chat(RED_URL, truncate_prompt_tokens=5))
    assert (exchange.status, error_of(exchange)["param"]) == (400, "truncate_prompt_tokens")


# -- files and urls ---------------------------------------------------------------------------------------------------


async def test_a_file_below_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    async with seeing(media=MediaSettings(path=tmp_path)) as (world, library):
        assert (await world.post(CHAT, chat(image("file://red.png")))).status == 200
        assert SEEN in library.prompt
        exchange = await world.post(CHAT, chat(image("file://../x")))
        assert (exchange.status, "there is no file" in error_of(exchange)["message"]) == (400, True)


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
async def fetching(**settings: Any) -> AsyncIterator[tuple[World, RecordingLibrary, Web]]:
    """A server that fetches from a `Web`, and one name that leads into a private network."""
    web = Web()

    async def resolve(host: str, _port: int) -> list[str]:
        return ["10.0.0.1"] if host == "intern.test" else ["127.0.0.1"]

    async with (
        await asyncio.start_server(web.take, "127.0.0.1", 0) as listening,
        seeing(media=MediaSettings(urls=True, **settings)) as (world, library),
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


async def test_no_picture_is_fetched_from_a_private_network() -> None:
    async with fetching() as (world, library, _web):
        exchange = await world.post(CHAT, chat(image("http://intern.test/x.png")))
        assert exchange.status == 400
        assert error_of(exchange)["message"].startswith("picture 1: ")
        assert "not on the public network" in error_of(exchange)["message"]
        assert library.given == []


async def test_a_picture_that_does_not_come_is_given_up() -> None:
    async with fetching(fetch_timeout=0.05) as (world, _, web):
        web.answers = False
        exchange = await world.post(CHAT, chat(web.part))
        assert exchange.status == 400
        assert "picture 1: it could not be fetched within 0.05 s" in error_of(exchange)["message"]
        if web.asked.is_set():  # on a busy machine the time may be over before
            await web.left.wait()


async def test_fetched_bytes_count_as_the_bodys() -> None:
    async with fetching(max_bytes=1 << 20) as (world, _, web):
        world.app.state.server.fetcher = Fetcher(1 << 20, world.app.state.server.fetcher.resolve, lambda _: True)
        full = open_world(max_bodies=1, media=MediaSettings(urls=True))
        async with full as other:
            other.engine.media = RecordingLibrary(other.model)  # type: ignore[assignment]
            other.app.state.server.fetcher = world.app.state.server.fetcher
            exchange = await other.post(CHAT, chat(web.part))
            assert (exchange.status, error_of(exchange)["code"]) == (503, "busy")


async def test_files_of_this_machine_count_as_the_bodys(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    async with open_world(max_bodies=1, media=MediaSettings(path=tmp_path)) as world:
        world.engine.media = RecordingLibrary(world.model)  # type: ignore[assignment]
        assert (await world.post(CHAT, chat(RED_URL))).status == 200
        exchange = await world.post(CHAT, chat(image("file://red.png")))
        assert (exchange.status, error_of(exchange)["code"]) == (503, "busy")


ENDS = ["client", "cancel", "newer", "shutdown"]


async def end(world: World, exchange: Exchange, how: str) -> None:
    match how:
        case "client":
            exchange.leave()
        case "cancel":
            assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "cancelled"
        case "newer":
            assert (await world.complete("newer", headers={"x-supersede": "key"}, max_tokens=1).end()).status == 200
        case "shutdown":
            await world.shut_down()


MINE = {"x-request-id": "mine", "x-supersede": "key"}


@pytest.mark.parametrize("how", ENDS)
async def test_a_fetch_ends_with_its_request(how: str) -> None:
    async with fetching(fetch_timeout=60.0) as (world, library, web):
        web.answers = False
        exchange = world.begin("POST", CHAT, chat(web.part), headers=MINE)
        await web.asked.wait()
        (listed,) = await world.requests()
        assert (listed["id"], listed["status"]) == ("mine", "waiting")
        # Others are answered meanwhile.
        assert (await world.post(CHAT, chat("hello"))).status == 200
        await end(world, exchange, how)
        await web.left.wait()
        if how != "client":
            await exchange.end()
            assert exchange.status == (503 if how == "shutdown" else 499)
        assert library.given == []
