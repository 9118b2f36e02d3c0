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

What becomes of the fields that clients send to `/v1/chat/completions` and `/v1/completions`:

- **honoured**: it does what it says, here as where it comes from;
- **accepted**: it has no effect, and asks for none, or for what is so in any case;
- *ignored*: it has no effect, which the log and `X-Ignored-Fields` say. `--unknown-fields refuse` refuses it,
  `--unknown-fields ignore` says nothing;
- refused: 400, and the error names the field. It would change the answer, and cannot be honoured, or its value is none.

Null, in any optional field and at any depth, is as good as leaving the field out; so is an empty text, list or object
where the field has no such value. One field is an exception: `"max_tokens": null` of a completion sets no limit.

Any other field is ignored likewise. `/openapi.json` has the types, and what each means.
"""
SECTIONS = {
    "OpenAI": "OpenAI's",
    "llama-server": "llama-server's",
    "vLLM": "vLLM's",
    "Ollama": "Ollama's",
    "others": "Of others",
    "ours": "Ours",
}
SHOWN = {"honoured": "**honoured**", "accepted": "accepted", "ignored": "*ignored*", "refused": "refused"}
LONGEST = 60


def page(table: Path = TABLE) -> str:
    """The whole page."""
    rows: list[dict[str, Any]] = json.loads(table.read_text("utf-8"))
    return HEAD + "".join(section(title, [row for row in rows if row["of"] == of]) for of, title in SECTIONS.items())


def section(title: str, rows: list[dict[str, Any]]) -> str:
    return f"\n## {title}\n\n| field | e.g. | chats | completions |\n|---|---|---|---|\n{''.join(map(line, rows))}"


def line(row: dict[str, Any]) -> str:
    name, _, more = row["field"].partition(" (")
    said = json.dumps(row["body"], ensure_ascii=False)[1:-1].replace("|", "\\|")
    shown = f"`{said}`" if len(said) <= LONGEST else ""
    notes = [part for part in (more.rstrip(")"), row.get("note")) if part]
    field = f"`{name}`" + (f" ({'; '.join(notes)})" if notes else "")
    return f"| {field} | {shown} | {SHOWN[row['chats']]} | {SHOWN[row['completions']]} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
