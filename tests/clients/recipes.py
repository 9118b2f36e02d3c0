"""The recipes of ``docs/clients.md``, for a server that is elsewhere."""

import re

from tests.support.pages import blocks

THERE = "http://127.0.0.1:8000"


def recipe(title: str, url: str) -> str:
    """The first block of code under a heading of the page, with another address.

    Raises
    ------
    KeyError
        If the page has no such heading, or no code under it.
    """
    found = {block.heading: block.code for block in reversed(list(blocks("docs/clients.md")))}
    return found[title].replace(THERE, url)


def exports(title: str, url: str) -> dict[str, str]:
    """The variables of a recipe that is made of a shell's exports."""
    return dict(re.findall(r"^export (\w+)=(.*)$", recipe(title, url), re.MULTILINE))
