"""``--peers`` and what belongs to it: what is understood, and what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllmcancel.cli import peers, serve, serve_options
from pyllmcancel.cli.parser import Parser
from pyllmcancel.errors import UsageError
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.fleet.addresses import Address
from pyllmcancel.server.http.listening import close_all, listen

ONE = ("--peers", "http://127.0.0.1:1")


def config(*options: str) -> ServerConfig:
    parser = Parser(prog="serve", allow_abbrev=False)
    serve_options.add_all(parser)
    return serve.server_config(parser.parse_args(options))


def test_without_peers_there_is_no_fleet() -> None:
    assert config().fleet is None
    assert config("--replica", "one").replica == "one"


def test_peers_are_addresses_and_the_server_has_a_name() -> None:
    fleet = config("--peers", "http://one:8000,https://[::1]:2", "--peers", "dns://many.local:3").fleet
    assert fleet is not None
    assert fleet.peers == (
        Address("http", "one", 8000),
        Address("https", "::1", 2),
        Address("dns", "many.local", 3),
    )
    assert fleet.peers[1].url == "https://[::1]:2"


def test_a_server_without_a_name_is_called_by_its_address() -> None:
    listeners = listen("127.0.0.1", 0)
    try:
        port = listeners[0].getsockname()[1]
        unnamed = peers.named(config(*ONE), listeners)
        fleet = unnamed.fleet
        assert fleet is not None
        assert fleet.name == unnamed.replica == f"127.0.0.1:{port}"
        fleet = peers.named(config(*ONE, "--replica", "one"), listeners).fleet
        assert fleet is not None
        assert fleet.name == "one"
    finally:
        close_all(listeners)


def test_the_key_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(" secret\n")
    fleet = config(*ONE, "--api-key", "k", "--peer-key-file", str(file)).fleet
    assert fleet is not None
    assert fleet.key == "secret"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--peers", "one:8000"), "must be http://HOST:PORT"),
        (("--peers", "http://one"), "must be http://HOST:PORT"),
        (("--peers", "http://one:0"), "must be http://HOST:PORT"),
        (("--peers", "http://one:99999"), "must be http://HOST:PORT"),
        (("--peers", "http://one:1/v1"), "must be http://HOST:PORT"),
        (("--peers", "http://me:password@one:1"), "must be http://HOST:PORT"),
        (("--peers", "ftp://one:1"), "must be http://HOST:PORT"),
        (("--peers", "http://[one:1"), "must be http://HOST:PORT"),
        (("--peers", "http://one:1,http://one:1"), "names http://one:1 twice"),
        ((*ONE, "--replica", "a b"), "--replica must match"),
        ((*ONE, "--replica", ""), "--replica must match"),
        ((*ONE, "--api-key", "k"), "needs --peer-key"),
        ((*ONE, "--peer-key", ""), "--peer-key must be one line"),
        ((*ONE, "--peer-key", "k\u00e9y"), "--peer-key must be one line"),
        ((*ONE, "--peer-key", "k", "--peer-key-file", "/dev/null"), "exclude each other"),
        ((*ONE, "--peer-key-file", "/dev/null"), "--peer-key-file must be one line"),
        (("--peer-key", "k"), "need --peers"),
    ],
)
def test_what_makes_no_sense_is_told(options: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError) as error:
        config(*options)
    assert told in str(error.value)


def test_what_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "NEEDED", "no_such_library")
    with pytest.raises(UsageError, match=r"--peers needs no_such_library: pip install 'pyllmcancel\[fleet\]'"):
        config(*ONE)
