"""The tables of ``python -m bench.native``, as they lie beside the side-by-side run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report.tables import line

# Quartiles say it shorter.
LEFT_OUT = {"min", "max"}

Document = Mapping[str, Any]


def read_documents(folder: Path) -> list[Document]:
    """What the microbenchmarks wrote: one document for each benchmark and model."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("micro-*.json"))]


def microbenchmarks(documents: Sequence[Document]) -> list[str]:
    """One table for each benchmark, the models' rows under each other; nothing where there is no document."""
    if not documents:
        return []
    commits = ", ".join(sorted({document["code"]["commit"][:12] for document in documents}))
    origin = f"Written by `python -m bench.native` at commit {commits}, with no server and no client."
    lines = ["## The core on its own", "", origin]
    for name in dict.fromkeys(document["name"] for document in documents):
        found = [document for document in documents if document["name"] == name]
        lines += ["", f"### {name}", "", explanation(found[0]), "", *table(found)]
    return lines


def explanation(document: Document) -> str:
    text = str(document["title"])
    return f"{text[0].upper()}{text[1:]}; in {document['unit']} where the column does not say otherwise."


def table(documents: Sequence[Document]) -> list[str]:
    rows = [row for document in documents for row in document["rows"]]
    if not rows:
        return ["Nothing was measured."]
    keys = [key for key in rows[0] if key not in LEFT_OUT]
    aligned = ["---" if isinstance(rows[0][key], str) else "---:" for key in keys]
    return [line(keys), line(aligned), *(line([cell(row.get(key, "")) for key in keys]) for row in rows)]


def cell(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else str(value)
