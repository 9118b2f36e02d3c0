"""Rooms, arrows and circles of the package and of the server: ``python -m tests.packaging.rooms``.

A room is a module or a folder that lies directly in a folder. An arrow from one room to another stands for all imports,
those for type checkers included. A circle is a set of rooms each of which reaches all others.
"""

from __future__ import annotations

import sys

from tests.packaging.test_layers import imports, reached, sources


def arrows_in(folder: str) -> tuple[set[str], set[tuple[str, str]]]:
    """The rooms of a folder (`""` for the package itself), and the arrows between them."""
    prefix = f"{folder}." if folder else ""

    def room(module: str) -> str | None:
        return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None

    modules = sources()
    rooms = {found for module in modules if (found := room(module)) is not None}
    pairs = {(room(found.importer), room(found.imported)) for found in imports(modules)}
    return rooms, {(a, b) for a, b in pairs if a is not None and b is not None and a != b}


def circles(arrows: set[tuple[str, str]]) -> list[set[str]]:
    below: dict[str, set[str]] = {}
    for begin, end in arrows:
        below.setdefault(begin, set()).add(end)
    found: list[set[str]] = []
    for room in sorted(below):
        others = reached(room, below)
        if room in others and not any(room in circle for circle in found):
            found.append({other for other in others if room in reached(other, below)})
    return found


def main() -> None:
    for folder in ("", "server"):
        rooms, arrows = arrows_in(folder)
        found = circles(arrows)
        name = f"pyllmcancel.{folder}".rstrip(".")
        sys.stdout.write(f"{name}: {len(rooms)} rooms, {len(arrows)} arrows, {len(found)} circles\n")
        sys.stdout.writelines(f"  a circle of {len(circle)}: {', '.join(sorted(circle))}\n" for circle in found)


if __name__ == "__main__":
    main()
