"""The address of the documentation, to which the server's own pages lead: it is in the package's metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

DISTRIBUTION = "pyllmcancel"


def documentation_url() -> str | None:
    """Return the project's address ``Documentation``, or its pages at ``Source``; None if it was built without both."""
    try:
        entries = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    addresses = dict(entry.split(", ", 1) for entry in entries)
    source = addresses.get("Source")
    return addresses.get("Documentation", source and f"{source}/blob/HEAD/docs/index.md")
