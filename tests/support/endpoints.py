"""Facts from the endpoints' signatures."""

from collections.abc import Callable
from typing import Any, get_args, get_type_hints


def body_type_of(endpoint: Callable[..., Any]) -> Any:
    """The type of the body that is read for it; None if none is."""
    incoming = get_type_hints(endpoint).get("incoming")
    return None if incoming is None else get_args(incoming)[0]
