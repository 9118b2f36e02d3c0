"""The changelog's section of a version: ``## 1.2.3, unreleased``, and later ``## 1.2.3, 2026-01-31``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from itertools import zip_longest

from .commands import ReleaseError

KINDS = ("Breaking", "Added", "Changed", "Fixed")
UNRELEASED = "unreleased"
HEADING = re.compile(r"^## (?P<version>\S+), (?P<when>\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    version: str
    when: str  # a date, or UNRELEASED
    text: str  # below the heading

    def entries(self) -> dict[str, int]:
        """The number of entries under each heading of a kind."""
        parts = re.split(r"^### (.+)$", self.text, flags=re.MULTILINE)
        kinds, texts = parts[1::2], parts[2::2]
        return {kind: len(re.findall(r"^- ", text, re.MULTILINE)) for kind, text in zip(kinds, texts, strict=True)}


def sections(changelog: str) -> list[Section]:
    headings = list(HEADING.finditer(changelog))
    ends = (heading.start() for heading in headings[1:])
    return [
        Section(heading["version"], heading["when"], changelog[heading.end() : end].strip())
        for heading, end in zip_longest(headings, ends)
    ]


def check(changelog: str, version: str) -> None:
    """Check that the newest section is the unreleased one of `version`, and has entries; ReleaseError if not."""
    found = sections(changelog)
    if not found or found[0].version != version:
        newest = f"{found[0].version}, {found[0].when}" if found else "missing"
        raise ReleaseError(f"CHANGELOG.md: the newest section is to be '## {version}, {UNRELEASED}', and is {newest}")
    section = found[0]
    if section.when != UNRELEASED:
        raise ReleaseError(f"CHANGELOG.md: {version} was released on {section.when}")
    entries = section.entries()
    if strange := [kind for kind in entries if kind not in KINDS]:
        raise ReleaseError(f"CHANGELOG.md: {', '.join(strange)}: the headings are {', '.join(KINDS)}")
    if not entries or not all(entries.values()):
        empty = [kind for kind, count in entries.items() if count == 0]
        raise ReleaseError(f"CHANGELOG.md: {version} has no entries" + (f" under {', '.join(empty)}" if empty else ""))


def dated(changelog: str, version: str, day: date) -> str:
    """Return the changelog with the day on which `version` is released."""
    return changelog.replace(f"## {version}, {UNRELEASED}\n", f"## {version}, {day.isoformat()}\n", 1)


def notes(changelog: str, version: str) -> str:
    """Return the text of the version's section, as a release on a forge shows it."""
    (section,) = (section for section in sections(changelog) if section.version == version)
    return f"{section.text}\n"
