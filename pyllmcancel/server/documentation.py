"""The address of the documentation, to which the server's own pages lead: it is in the package's metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

DISTRIBUTION = "pyllmcancel"
LABEL = "Documentation"  # under [project.urls]


def documentation_url() -> str | None:
    """Return the address; None if the package was built without one."""
    try:
        entries = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    addresses = dict(entry.split(", ", 1) for entry in entries)
    return addresses.get(LABEL)
