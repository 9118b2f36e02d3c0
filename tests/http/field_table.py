"""Reads the table of fields, beside this file: one row each, with a usual value and what becomes of it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.http_world import CHAT, COMPLETIONS

TABLE = Path(__file__).with_suffix(".json")
ENDPOINTS = {"chats": CHAT, "completions": COMPLETIONS}
Row = dict[str, Any]


@cache
def rows() -> tuple[Row, ...]:
    return tuple(json.loads(TABLE.read_text("utf-8")))
