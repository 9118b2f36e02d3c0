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

Clients send these fields to `/v1/chat/completions` and `/v1/completions`. The last two columns have the effect of each:

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
