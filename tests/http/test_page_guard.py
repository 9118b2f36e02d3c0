"""Web pages of others: names that are not the server's get 421, pages that nobody has allowed 403."""

from itertools import product
from typing import Any

import pytest

from tests.support.http_asgi import Exchange
from tests.support.http_world import COMPLETIONS, World, open_world, unnamed

OURS = "127.0.0.1:8000"
EVIL = "http://evil.example:8000"
# Nobody has this id: 404 says that the request was served.
NOBODY = "/v1/requests/nobody"
CANCEL = f"{NOBODY}/cancel"
PATHS = ("/", "/health", "/v1/health", "/docs", "/openapi.json", "/page/app.js", "/v1/models", "/v1/events", "/metrics")
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
SECRETS = ("/v1/models", "/v1/requests", "/v1/sessions", "/v1/steps", "/slots", "/props", "/metrics", "/v1/responses/x")

HOSTS = (
    *("127.0.0.1:8000", "127.0.0.1", "127.9.9.9:1", "[::1]:8000", "[::1]", "192.168.1.7:8000", "8.8.8.8"),
    *("[fe80::1%25eth0]:80", "[2001:DB8::1]", "localhost", "localhost:3000", "LocalHost:8000", "localhost.:8000"),
    *("editor.localhost", "a.b.LOCALHOST.", "my-box.lan:8000", "MY-BOX.lan.", "chat.example", "x.below.example", ""),
)
OTHER_HOSTS = (
    *("evil.example", "evil.example:8000", "EVIL.EXAMPLE.", "localhost.evil.example", "notlocalhost", "my-box.lan.x"),
    *("127.0.0.1.evil.example", "127.0.0.1@evil.example", "evil.example@127.0.0.1", "evil.example:80:80", "below.x"),
    *("localhost, evil.example", "localhost/evil", "[::1", "::1", "[evil.example]", "localhost:x", ".", ":8000"),
)
FOREIGN: tuple[dict[str, str], ...] = (
    *(
        {"origin": origin}
        for origin in (
            *("http://evil.example", "https://evil.example:8000", "null", "file://", "chrome-extension://abc"),
            *(
                "vscode-webview://abc",
                "http://127.0.0.1:3000",
                "http://127.0.0.1",
                "http://127.0.0.1:8000@evil.example",
            ),
            *("http://127.0.0.1:8000.evil.example", "http://localhost:8000"),  # another origin than 127.0.0.1
        )
    ),
    {"origin": "", "sec_fetch_site": "same-origin"},
    {"origin": EVIL, "sec_fetch_site": "same-origin"},
    {"origin": "http://127.0.0.1:8000", "sec_fetch_site": "cross-site"},
    *({"sec_fetch_site": site} for site in ("cross-site", "same-site", "of a kind that is not known yet")),
)
OWN: tuple[dict[str, str], ...] = (
    {},
    {"origin": "http://127.0.0.1:8000"},
    {"origin": "https://127.0.0.1:8000"},  # a proxy in front may speak it
    {"origin": "http://127.0.0.1:8000", "sec_fetch_site": "same-origin"},
    {"sec_fetch_site": "same-origin"},
    {"sec_fetch_site": "none"},
    {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"},
)


async def ask(world: World, method: str, path: str, **headers: str) -> Exchange:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await world.begin(method, path, {} if method == "POST" else None, headers=named).end()


async def status(world: World, method: str, path: str, **headers: str) -> int:
    return (await ask(world, method, path, **headers)).status


async def refusal(world: World, method: str, path: str, **headers: str) -> tuple[int, Any]:
    exchange = await ask(world, method, path, **headers)
    return exchange.status, exchange.json()["error"].get("code") if exchange.body else None


# -- names of the server ----------------------------------------------------------------------------------------------


async def test_a_name_of_the_server_is_served_and_any_other_is_misdirected() -> None:
    named = {"bound_to": ("my-box.lan", "0.0.0.0"), "allowed_hosts": ("chat.example", "*.below.example")}
    async with open_world(**named) as world:
        assert await status(world, "GET", "/v1/models") == 200
        for host in HOSTS:
            assert (host, await status(world, "GET", "/v1/models", host=host)) == (host, 200)
        for host in OTHER_HOSTS:
            assert (host, await refusal(world, "GET", "/v1/models", host=host)) == (host, (421, "unknown_host"))


async def test_a_page_whose_name_was_rebound_is_refused_on_every_path(world: World) -> None:
    rebound = {"host": "evil.example:8000", "origin": EVIL, "sec_fetch_site": "same-origin"}
    for method, path in product(METHODS, (*PATHS, "/no/such/path")):
        assert (method, path, await status(world, method, path, **rebound)) == (method, path, 421)


async def test_the_refusal_names_the_option_and_has_the_shape_of_its_api(world: World) -> None:
    plain = await ask(world, "POST", COMPLETIONS, host="box.lan:8000")
    assert "--allowed-hosts box.lan," in plain.json()["error"]["message"]
    assert plain.headers["x-should-retry"] == "false"
    message = (await ask(world, "POST", "/v1/messages", host="box.lan")).json()
    assert (message["type"], message["error"]["type"]) == ("error", "invalid_request_error")
    assert (await ask(world, "POST", "/completion", host="box.lan")).json()["error"]["code"] == 421


@pytest.mark.parametrize("allowed", [("*",), ("chat.example", "*")])
async def test_a_star_allows_all_names(allowed: tuple[str, ...]) -> None:
    async with open_world(allowed_hosts=allowed) as world:
        assert await status(world, "GET", "/v1/models", host="any.example") == 200


async def test_where_a_key_is_asked_for_names_count_only_on_demand() -> None:
    for allowed, expected in (((), 200), (("chat.example",), 421)):
        async with open_world(api_keys=unnamed("key"), allowed_hosts=allowed) as world:
            key = {"authorization": "Bearer key", "host": "any.example"}
            assert await status(world, "GET", "/v1/models", **key) == expected
            assert await status(world, "GET", "/health", host="any.example") == expected
            assert await status(world, "GET", "/health", host="10.1.2.3:8000") == 200  # as a cluster's probes ask


# -- pages of others --------------------------------------------------------------------------------------------------


CHANGES = (
    *(("POST", COMPLETIONS), ("POST", "/v1/requests/cancel"), ("POST", "/v1/requests/mine/cancel?hold=60")),
    *(("POST", "/v1/sessions/editor/cancel"), ("DELETE", "/v1/requests/mine"), ("PATCH", "/"), ("POST", "/health")),
)


async def test_what_a_page_of_another_sends_changes_nothing(world: World) -> None:
    for (method, path), page in product(CHANGES, FOREIGN):
        found = await refusal(world, method, path, host=OURS, **page)
        assert (method, path, page, found) == (method, path, page, (403, "foreign_origin"))
    assert await status(world, "POST", CANCEL, origin="http://127.0.0.1:8000") == 403, "nothing has a name here"


async def test_what_a_page_of_another_fetches_tells_nothing(world: World) -> None:
    for method, path, page in product(("GET", "HEAD"), SECRETS, FOREIGN):
        found = await status(world, method, path, **page, host=OURS, sec_fetch_mode="navigate")
        assert (method, path, page, found) == (method, path, page, 403)


async def test_links_lead_to_the_page_and_the_documentation_from_anywhere(world: World) -> None:
    for path, page in product(("/", "/docs", "/openapi.json", "/page/app.js", "/health"), FOREIGN):
        assert (path, page, await status(world, "GET", path, host=OURS, **page)) == (path, page, 200)


async def test_its_own_page_and_programs_are_served(world: World) -> None:
    for page in OWN:
        assert (page, await status(world, "GET", "/v1/requests", host=OURS, **page)) == (page, 200)
        assert (page, await status(world, "POST", CANCEL, host=OURS, **page)) == (page, 404)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://localhost", "localhost:80"),
        ("https://localhost", "localhost"),
        ("https://localhost:443", "LOCALHOST"),
        ("http://localhost.:8000", "localhost:8000"),
    ],
)
async def test_an_origin_and_a_name_are_compared_as_a_browser_means_them(world: World, origin: str, host: str) -> None:
    assert await status(world, "POST", CANCEL, host=host, origin=origin) == 404


async def test_a_key_does_not_let_a_page_in() -> None:
    async with open_world(api_keys=unnamed("key")) as world:
        headers = {"host": "any.example", "authorization": "Bearer key"}
        assert await status(world, "POST", CANCEL, origin=EVIL, **headers) == 403
        assert await status(world, "POST", CANCEL, origin="https://any.example", **headers) == 404


async def test_a_cancel_and_a_hold_that_were_refused_reach_nobody(world: World) -> None:
    forged = {"host": OURS, "origin": EVIL, "sec_fetch_site": "cross-site"}
    stream = await world.running_stream("mine")
    assert await status(world, "POST", "/v1/requests/mine/cancel", **forged) == 403
    assert await status(world, "POST", "/v1/requests/next/cancel?hold=60", **forged) == 403
    world.gate.open()
    await stream.end()
    assert stream.events[-1] == "[DONE]"
    assert (await world.complete(headers={"x-request-id": "next"}, max_tokens=1).end()).status == 200


# -- pages that are allowed -------------------------------------------------------------------------------------------


# By what is named: an origin that is allowed by it, and others that are not.
NAMED: list[tuple[str, str, tuple[str, ...]]] = [
    ("*", "http://evil.example", ()),
    ("*", "null", ()),
    (
        "https://page.example",
        "https://page.example",
        ("http://page.example", "https://page.example.evil.example", "null"),
    ),
    ("localhost", "http://localhost:3000", ("http://localhost.evil.example", "localhost")),
    ("localhost", "https://[::1]:3000", ()),
    ("null", "null", ("file://",)),
    ("file://", "file://", ()),
    ("chrome-extension://abc", "chrome-extension://abc", ()),
    ("vscode-webview://*", "vscode-webview://0a1b2c", ("vscode-webview-evil://x", "http://vscode-webview//x")),
    ("app://*", "app://obsidian.md", ()),
    ("tauri://localhost", "tauri://localhost", ()),
]


@pytest.mark.parametrize(("named", "origin", "others"), NAMED)
async def test_a_page_that_is_named_may_do_all_that_a_program_may_and_no_other_page(
    named: str, origin: str, others: tuple[str, ...]
) -> None:
    allow = "access-control-allow-origin"
    async with open_world(cors_origins=("https://other.example", named)) as world:
        for method, path, expected in (("GET", "/v1/requests", 200), ("POST", CANCEL, 404), ("DELETE", NOBODY, 404)):
            exchange = await ask(world, method, path, host=OURS, origin=origin, sec_fetch_site="cross-site")
            assert (exchange.status, exchange.headers[allow] in ("*", origin)) == (expected, True)
        for other in others:
            exchange = await ask(world, "POST", CANCEL, host=OURS, origin=other, sec_fetch_site="cross-site")
            assert exchange.status == 403
            assert allow not in exchange.headers
            assert allow not in (await preflight(world, other)).headers


async def test_the_refusal_says_what_to_start_the_server_with(world: World) -> None:
    for origin in ("https://page.example", "null", "chrome-extension://abc"):
        message = (await ask(world, "POST", CANCEL, host=OURS, origin=origin)).json()["error"]["message"]
        assert message.endswith(f"--cors-origins {origin}")
        assert OURS in message


async def test_what_a_page_sends_without_its_origin_is_allowed_by_a_star_only() -> None:
    for allowed, expected in (("https://page.example", 403), ("*", 200)):
        async with open_world(cors_origins=(allowed,)) as world:
            found = await status(world, "GET", "/v1/requests", host=OURS, sec_fetch_site="cross-site")
            assert found == expected


# -- behind a proxy ---------------------------------------------------------------------------------------------------

PUBLIC = {"x_forwarded_host": "chat.example:8443", "origin": "https://chat.example:8443"}


async def test_a_trusted_proxy_tells_the_name_that_its_client_asked_for() -> None:
    async with open_world(trusted_proxies=("127.0.0.1",), allowed_hosts=("chat.example",)) as world:
        assert await status(world, "POST", CANCEL, host=OURS, **PUBLIC) == 404
        assert await status(world, "POST", CANCEL, host=OURS, x_forwarded_host="evil.example", origin=EVIL) == 421
        assert await status(world, "GET", "/v1/models", host=OURS, x_forwarded_host="evil.example, localhost") == 421


async def test_anybody_else_does_not() -> None:
    async with open_world(trusted_proxies=("192.0.2.1",), allowed_hosts=("chat.example",)) as world:
        assert await status(world, "POST", CANCEL, host=OURS, **PUBLIC) == 403
        assert await status(world, "GET", "/v1/models", host=OURS, x_forwarded_host="evil.example") == 200


async def test_a_page_that_came_by_http_is_not_one_of_a_server_that_speaks_https() -> None:
    secure = {"host": OURS, "x_forwarded_proto": "https"}
    async with open_world(trusted_proxies=("127.0.0.1",)) as world:
        assert await status(world, "POST", CANCEL, origin=f"http://{OURS}", **secure) == 403
        assert await status(world, "POST", CANCEL, origin=f"https://{OURS}", **secure) == 404


# -- ``--cors-origins``, as browsers ask -------------------------------------------------------------------------------


PAGE = "https://page.example"


async def preflight(world: World, origin: str) -> Exchange:
    asked = {"method": "POST", "headers": "authorization,x-session-id"}
    headers = {f"access-control-request-{name}": value for name, value in asked.items()}
    return await world.begin("OPTIONS", COMPLETIONS, headers=headers | {"origin": origin}).end()


async def test_by_default_no_page_is_allowed(world: World) -> None:
    assert (await preflight(world, PAGE)).status == 405
    exchange = await world.get("/health", headers={"origin": PAGE})
    assert not [name for name in exchange.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("allowed", [("*",), (PAGE,), ("https://other.example", PAGE)])
async def test_a_preflight_passes_without_a_key_and_allows_what_was_asked_for(allowed: tuple[str, ...]) -> None:
    async with open_world(cors_origins=allowed, api_keys=unnamed("key")) as world:
        exchange = await preflight(world, PAGE)
        assert exchange.status == 200
        assert exchange.headers["access-control-allow-origin"] == ("*" if allowed == ("*",) else PAGE)
        assert "x-session-id" in exchange.headers["access-control-allow-headers"]
        assert "x-request-id" in exchange.headers
        refused = await world.complete(headers={"origin": PAGE}).end()
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == exchange.headers["access-control-allow-origin"]
        assert "X-Request-Id" in refused.headers["access-control-expose-headers"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_that_is_closed_is_a_client_that_leaves(stream: bool) -> None:
    async with open_world(cors_origins=("*",)) as world:
        exchange = await world.computing(stream=stream, headers={"origin": PAGE, "x-request-id": "mine"})
        await exchange.left()
        assert (await world.ended("mine"))["cancel_reason"] == "disconnect"
