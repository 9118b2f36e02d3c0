"""Failures: errors that end a command with one line and a status."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Failure(Exception):  # noqa: N818
    """The end of a command. Status 2: the command line is wrong; 1: something else is."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.status = status


@contextmanager
def failing(*kinds: type[Exception], status: int = 2) -> Iterator[None]:
    """Turn errors of these kinds into failures."""
    try:
        yield
    except kinds as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
            text = f"{error.filename}: {error.strerror.lower()}"  # Python begins that of a file with a number
        raise Failure(text, status) from None


@contextmanager
def using(extra: str, packages: Collection[str]) -> Iterator[None]:
    """Turn the error that one of an extra's packages is missing into a Failure, which says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        raise Failure(f"{missing} is missing: pip install 'pyllmcancel[{extra}]'") from None
