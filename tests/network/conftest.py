"""A network that tests share; without root and iproute2 they are skipped."""

from collections.abc import Iterator

import pytest

from tests.support.network import NamespacesMissingError, Network, inside


@pytest.fixture(scope="session")
def cables() -> Iterator[Network]:
    try:
        network = Network()
    except NamespacesMissingError as error:
        pytest.skip(f"no network namespaces: {error}")
    with network:
        yield network


@pytest.fixture
def network(cables: Network) -> Iterator[Network]:
    """The test's own thread is on the server's machine, and all cables are plugged in."""
    cables.plug_in()
    with inside(cables.server):
        yield cables
