"""The page's files: they need no key, can run nothing but themselves, and name nothing elsewhere."""

import re
from email.message import Message
from pathlib import Path

import pytest

import pyllmcancel
from pyllmcancel.config import EngineConfig
from pyllmcancel.server.app import create_app
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.page import MEDIA_TYPES, POLICY, documentation_url, page_files
from tests.support.http_world import World, open_world, unnamed

PAGE = Path(pyllmcancel.__file__).parent / "page"
OURS = sorted(path for path in page_files() if not path.startswith("vendor/"))


async def test_it_is_served_without_a_key_and_may_run_only_itself() -> None:
    async with open_world(api_keys=unnamed("secret")) as world:
        page = await world.get("/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "script-src 'self';" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        for path in page_files():
            file = await world.get(f"/page/{path}")
            assert (file.status, file.body) == (200, page_files()[path][0])
        assert (await world.get("/v1/requests")).status == 401


async def test_the_documentation_is_there_without_the_live_page_too() -> None:
    async with open_world(api_keys=unnamed("secret"), ui=False) as world:
        docs = await world.get("/docs")
        assert (docs.status, docs.body) == (200, page_files()["docs.html"][0])
        assert docs.headers["content-security-policy"] == POLICY
        for path in re.findall(r'(?:href|src)="([^"]+)"', docs.body.decode()):
            # Nothing is asked of another host; what the page is made of is there, the rest are links.
            assert not path.startswith(("/", "http"))
            if path.startswith("page/"):
                assert (await world.get(f"/{path}")).status == 200
        assert "/v1/completions" in world.app.openapi()["paths"]


def test_nothing_of_the_documentation_stands_in_line_and_every_file_is_of_a_kind_that_is_served() -> None:
    text = (PAGE / "docs.html").read_text()
    assert re.search(r"<style|\sstyle=|\son\w+=|javascript:", text) is None
    assert re.findall(r"<script[^>]*>([^<]*)</script>", text) == ["", ""]
    others = [path for path in PAGE.rglob("*") if path.is_file() and path.suffix[1:] not in MEDIA_TYPES]
    assert {path.suffix for path in others} <= {".toml", ""}, others


def test_the_pages_have_the_address_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyllmcancel.server.page, "documentation_url", lambda: 'https://x.org/"docs"')
    files = page_files.__wrapped__()
    for path in ("index.html", "docs.html"):
        assert b'<meta name="documentation" content="https://x.org/&quot;docs&quot;">' in files[path][0]


def test_the_address_of_the_documentation_is_a_project_url(monkeypatch: pytest.MonkeyPatch) -> None:
    distribution = Message()
    monkeypatch.setattr(pyllmcancel.server.page, "metadata", lambda _: distribution)
    assert documentation_url() is None
    distribution["Project-URL"] = "Source, https://x.org/r"
    assert documentation_url() == "https://x.org/r/blob/HEAD/docs/index.md"
    distribution["Project-URL"] = "Documentation, https://x.org/docs, with a comma"
    assert documentation_url() == "https://x.org/docs, with a comma"
    assert create_app(ServerConfig(engine=EngineConfig())).openapi()["externalDocs"]["url"] == documentation_url()


async def test_a_file_that_is_known_is_not_sent_again(world: World) -> None:
    etag = (await world.get("/page/app.js")).headers["etag"]
    again = await world.begin("GET", "/page/app.js", headers={"if-none-match": etag}).end()
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("path", ["", "nothing.js", "../pyproject.toml", "..%2f__init__.py", "/etc/passwd", "app.js/"])
async def test_nothing_but_its_files_is_served(world: World, path: str) -> None:
    assert (await world.get(f"/page/{path}")).status == 404


@pytest.mark.parametrize("path", [path for path in OURS if path.endswith((".js", ".css", ".html"))])
def test_no_other_host_is_named(path: str) -> None:
    text = (PAGE / path).read_text()
    assert "//" not in re.sub(r"http://www\.w3\.org/\S+|(^|\s)//.*", "", text)
