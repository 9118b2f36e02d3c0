"""`POST /slots/{id}?action=save|restore|erase`, as llama-server's clients use it, and what it refuses."""

import errno
import os
import stat
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyllmcancel.scheduling.swap_space import Fetched, Holder
from pyllmcancel.server.config import ApiKey
from pyllmcancel.server.llama import routes_slots as slot_files
from tests.support.fake_native import Model
from tests.support.http_world import World, open_world

FRANCE = "What is the capital of France?"
GERMANY = "What is the capital of Germany?"
BAD_NAMES = (
    *("../slot.bin", "a/b", "a\\b", "", ".", "..", ".hidden", "a..b", "x" * 256, "a\nb", "/etc/passwd", "a:b", "a "),
    *("a.", "\uff0e\uff0e", "a\x00b"),
)
KEYS = (ApiKey("alice", "key-a"), ApiKey("bob", "key-b"))


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(folder.glob(pattern))


def serving(folder: Path, **options: Any) -> Any:
    return open_world(slot_save_path=folder, named_slots=True, draft_sources=(), **options)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as opened:
        yield opened


async def ask(
    world: World, prompt: str, slot: int | None = None, key: str | None = None, **fields: Any
) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0} | ({} if slot is None else {"id_slot": slot}) | fields
    return (await world.served("/completion", body, headers=bearer(key))).json()["timings"]


async def act(
    world: World, action: str, slot: int = 0, filename: str | None = "slot.bin", key: str | None = None
) -> tuple[int, dict[str, Any]]:
    body = None if filename is None else {"filename": filename}
    exchange = await world.post(f"/slots/{slot}?action={action}", body, headers=bearer(key))
    return exchange.status, exchange.json()


async def refused(world: World, action: str, words: str = "", param: str = "filename", **options: Any) -> None:
    status, answer = await act(world, action, **options)
    assert (status, answer["error"]["param"]) == (400, param)
    assert words in answer["error"]["message"]


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


async def test_a_slot_is_saved_and_restored_into_another(world: World, tmp_path: Path) -> None:
    assert (await ask(world, FRANCE, 1))["cache_n"] == 0
    status, saved = await act(world, "save", 1)
    n_saved = len(FRANCE) + 7
    size = (tmp_path / "slot.bin").stat().st_size
    assert status == 200
    assert saved.pop("timings")["save_ms"] >= 0
    assert saved == {"id_slot": 1, "filename": "slot.bin", "n_saved": n_saved, "n_written": size}
    n_common = len("What is the capital of ")
    assert (await ask(world, GERMANY, 1))["cache_n"] == n_common
    status, restored = await act(world, "restore", 0)
    assert status == 200
    assert restored.pop("timings")["restore_ms"] >= 0
    assert restored == {"id_slot": 0, "filename": "slot.bin", "n_restored": n_saved, "n_read": size}
    assert (await ask(world, FRANCE, 0))["cache_n"] == len(FRANCE) - 1
    assert (await ask(world, GERMANY, 1))["cache_n"] == len(GERMANY) - 1, "the other slot is as it was"


async def test_an_erased_slot_has_nothing(world: World) -> None:
    await ask(world, FRANCE, 1)
    assert await act(world, "erase", 1, None) == (200, {"id_slot": 1, "n_erased": len(FRANCE) + 7})
    assert (await ask(world, FRANCE, 1))["cache_n"] == 0
    assert await act(world, "erase", 0, None) == (200, {"id_slot": 0, "n_erased": 0})
    assert (await act(world, "save", 0))[0] == 400


async def test_a_busy_slot_is_saved_when_its_request_has_ended(world: World, tmp_path: Path) -> None:
    world.hold()
    running = world.begin("POST", "/completion", {"prompt": FRANCE, "n_predict": 4, "id_slot": 0})
    await world.held()
    saving = world.begin("POST", "/slots/0?action=save", {"filename": "slot.bin"})
    await world.step(2)
    assert not (tmp_path / "slot.bin").exists()
    world.gate.open()
    assert (await running.end()).status == 200
    assert (await saving.end()).json()["n_saved"] == len(FRANCE) + 3


@pytest.mark.parametrize("filename", BAD_NAMES)
@pytest.mark.parametrize("action", ["save", "restore"])
async def test_a_name_outside_the_folder_is_refused(world: World, tmp_path: Path, filename: str, action: str) -> None:
    await refused(world, action, filename=filename)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("filename", ["x" * 255, "é" * 127])
async def test_a_name_may_be_as_long_as_the_system_allows(world: World, tmp_path: Path, filename: str) -> None:
    await ask(world, FRANCE, 0)
    assert (await act(world, "save", 0, filename))[0] == 200
    assert [file.name for file in files_in(tmp_path, "[!.]*")] == [filename]


@pytest.mark.parametrize("body", [None, {}, {"filename": 1}, {"filename": None}])
async def test_a_body_without_a_name_is_refused(world: World, body: Any) -> None:
    assert (await world.post("/slots/0?action=save", body)).status in (400, 415)


@pytest.mark.parametrize("slot", [-1, 4, 1 << 40])
@pytest.mark.parametrize("action", ["save", "restore", "erase"])
async def test_a_slot_that_is_not_there_is_refused(world: World, slot: int, action: str) -> None:
    await refused(world, action, param="id_slot", slot=slot)


async def test_owners_have_files_of_their_own(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=KEYS) as world:
        await ask(world, FRANCE, 0, "key-a")
        assert (await act(world, "save", 0, key="key-a"))[0] == 200
        assert (await act(world, "save", 0, key="key-b"))[0] == 400, "alice's slot is not bob's"
        assert (await act(world, "erase", 0, None, key="key-b")) == (200, {"id_slot": 0, "n_erased": 0})
        assert (await act(world, "restore", 0, key="key-b"))[0] == 400
        assert (await act(world, "restore", 1, key="key-a"))[0] == 200
        # The name of a folder is no secret: a file that was moved is still alice's.
        (path,) = files_in(tmp_path, "owner-*/slot.bin")
        modes = [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)]
        assert modes == [0o600, 0o700], "files are readable by their user only"
        await ask(world, GERMANY, 0, "key-b")
        assert (await act(world, "save", 0, "mine.bin", key="key-b"))[0] == 200
        (other,) = files_in(tmp_path, "owner-*/mine.bin")
        path.replace(other)
        await refused(world, "restore", "another owner", filename="mine.bin", key="key-b")


async def test_a_slot_survives_a_restart_but_not_with_other_cells(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        # A slot without a name is the one that the answer tells.
        exchange = await world.post("/completion", {"prompt": FRANCE, "n_predict": 4})
        status, saved = await act(world, "save", exchange.json()["id_slot"])
        assert (status, saved["n_saved"]) == (200, len(FRANCE) + 3)
    for options in ({"cache_type_k": "q8_0"}, {"flash_attn": "on"}, {"model": Model("hybrid")}, {"n_ctx": 512}):
        async with serving(tmp_path, **options) as world:
            await refused(world, "restore", "another model")
    async with serving(tmp_path) as world:
        assert (await act(world, "restore"))[0] == 200
        assert (await ask(world, FRANCE))["cache_n"] == len(FRANCE) - 1


async def test_a_file_that_was_edited_is_refused_and_the_slot_can_be_used(world: World, tmp_path: Path) -> None:
    await ask(world, FRANCE, 0)
    await act(world, "save")
    path = tmp_path / "slot.bin"
    good = path.read_bytes()
    for place in (0, 9, 60, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert (await act(world, "restore", 1))[0] == 400
    path.write_bytes(good[:-1])
    assert (await act(world, "restore", 1))[0] == 400
    path.unlink()
    await refused(world, "restore", "no such file", slot=1)
    assert (await ask(world, GERMANY, 1))["prompt_n"] > 0


async def test_what_is_no_file_is_not_opened(world: World, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        await refused(world, "restore", filename=name)


async def test_a_full_disk_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(slot_files, "write", full)
    await ask(world, FRANCE, 0)
    status, answer = await act(world, "save")
    assert (status, answer["error"]["message"]) == (507, "the slot could not be saved: No space left on device")


async def test_a_slot_with_pictures_is_not_saved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative tokens stand for rows of pictures, by which only this process knows them."""
    copied = Future[Fetched]()
    copied.set_result(Fetched(cast("Any", SimpleNamespace(tokens=[1, -5, 2])), Holder()))
    monkeypatch.setattr(type(world.engine.slots), "copy", lambda *_: copied)
    status, answer = await act(world, "save")
    assert (status, answer["error"]["type"]) == (501, "not_supported_error")
    assert "pictures" in answer["error"]["message"]


async def test_an_owner_has_only_so_many_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_files, "MAX_FILES", 3)
    await ask(world, FRANCE, 0)
    assert [(await act(world, "save", 0, name))[0] for name in ("a", "b", "c", "a")] == [200, 200, 507, 200]


async def test_without_the_option_slots_are_not_named() -> None:
    async with open_world() as world:
        await ask(world, FRANCE, 0)
        assert (await act(world, "save"))[0] == 501
        assert (await ask(world, GERMANY, 0))["cache_n"] == len("What is the capital of "), "as any request"
