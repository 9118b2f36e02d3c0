"""Stores of responses, for tests: opened, filled, and closed in the end."""

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pyllmcancel.server.responses.storage.store import Store

DAY = 86_400.0
LIMIT = 60.0


def response(name: str, status: str = "completed", previous: str | None = None, **fields: Any) -> dict[str, Any]:
    found = {"id": name, "status": status, "previous_response_id": previous, "background": True, "error": None}
    return found | {"output": [{"id": f"out_{name}", "text": f"said {name}"}]} | fields


def item(name: str) -> dict[str, Any]:
    return {"id": f"in_{name}", "text": f"asked {name}"}


class Stores:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: list[Store] = []

    def __call__(self, where: Path | str | None = "", max_age: float = DAY, max_bytes: int = 1 << 20) -> Store:
        """A store of that file, by default the usual one; None: in memory."""
        path = self.path if where == "" else None if where is None else Path(where)
        self._opened.append(Store(path, max_age, max_bytes))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()


class Disk:
    """A small one, which can be full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store" / "responses.db"
        self._filling = folder / "filling"

    def fill(self) -> None:
        """To the last byte."""
        with suppress(OSError), open(self._filling, "ab", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass

    def empty(self) -> None:
        self._filling.unlink()


def edit(path: Path, *statements: str) -> None:
    """Change the file of a store that is closed."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def add_many(store: Store, prefix: str, count: int, owner: str = "", **fields: Any) -> None:
    """Add responses whose ids are `prefix` and a number."""
    for number in range(count):
        add(store, f"{prefix}{number}", owner, **fields)


def add(store: Store, name: str, owner: str = "", **fields: Any) -> None:
    store.add(owner, response(name, **fields), [item(name)]).result(LIMIT)


def status_of(store: Store, name: str, owner: str = "") -> str | None:
    kept = store.get(owner, name).result(LIMIT)
    assert kept is None or json.loads(kept.response)["status"] == kept.status
    return None if kept is None else kept.status
