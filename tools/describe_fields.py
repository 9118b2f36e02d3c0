"""Make docs/fields.md of tests/http/field_table.json: `python tools/describe_fields.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "fields.md"
TABLE = ROOT / "tests" / "http" / "field_table.json"
HEAD = """\
# Fields of chats and completions

<!-- Made by tools/describe_fields.py of tests/http/field_table.json, which a test goes through. -->

Clients send these fields to `/v1/chat/completions` and `/v1/completions`. Each line has fields with one effect there.
Brackets name a value, or a case:

- **honoured**: the field has the effect that it has on its server of origin;
- **accepted**: the field has no effect, because its value asks for none, or for one that holds in any case;
- *ignored*: the field has no effect, and the log and `X-Ignored-Fields` say so. `--unknown-fields refuse` refuses it,
  `--unknown-fields ignore` reports nothing;
- refused: 400, and the error names the field. The field would change the answer and cannot be honoured, or its value is
  invalid.

Null, in any optional field and at any depth, is the same as no field. So is an empty text, list or object if the field
has no such value. There is one exception: `"max_tokens": null` of a completion sets no limit.

Any other field is ignored likewise. `/openapi.json` has the type and the meaning of each.
"""
SECTIONS = {
    "OpenAI": "OpenAI's",
    "llama-server": "llama-server's",
    "vLLM": "vLLM's",
    "Ollama": "Ollama's",
    "others": "Others'",
    "ours": "Ours",
}
SHOWN = {"honoured": "**honoured**", "accepted": "accepted", "ignored": "*ignored*", "refused": "refused"}


def page(table: Path = TABLE) -> str:
    """The whole page."""
    rows: list[dict[str, Any]] = json.loads(table.read_text("utf-8"))
    return HEAD + "".join(section(title, [row for row in rows if row["of"] == of]) for of, title in SECTIONS.items())


def section(title: str, rows: list[dict[str, Any]]) -> str:
    """A line for each pair of effects, with the fields that have it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        groups.setdefault((row["chats"], row["completions"]), []).append(named(row))
    lines = (
        f"- {SHOWN[chats] if chats == completions else f'{SHOWN[chats]}; {SHOWN[completions]} in completions'}: "
        f"{'; '.join(fields)}\n"
        for (chats, completions), fields in groups.items()
    )
    return f"\n## {title}\n\n{''.join(lines)}"


def named(row: dict[str, Any]) -> str:
    name, _, more = row["field"].partition(" (")
    notes = [part for part in (more.rstrip(")"), row.get("note")) if part]
    return f"`{name}`" + (f" ({', '.join(notes)})" if notes else "")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
