"""Pictures in base64, in data URLs, and in files below a folder."""

import os
from base64 import b64encode
from pathlib import Path

import pytest

from pyllmcancel.media.errors import BadMedia
from pyllmcancel.server.config import MediaSettings
from pyllmcancel.server.media.sources import is_url, read
from tests.support.media_files import data_url, png

NONE = MediaSettings()
SMALL = MediaSettings(max_bytes=100)
PNG = png()
TEXT = b64encode(PNG).decode()


SPELLINGS = {
    "data url": data_url(PNG),
    "in capitals": data_url(PNG).replace("data:image/png;", "DATA:IMAGE/PNG;charset=x;").replace("base64,", "Base64,"),
    "of another kind": data_url(PNG, "audio/wav"),
    "base64": TEXT,
    "unpadded": TEXT.rstrip("="),
    "unpadded url": data_url(PNG).rstrip("="),
    "quoted": data_url(PNG).replace("=", "%3D").replace("+", "%2B"),
    "for urls": b64encode(PNG, b"-_").decode().rstrip("="),
    "in lines": "\n".join(TEXT[at : at + 20] for at in range(0, len(TEXT), 20)),
}


@pytest.mark.parametrize("source", SPELLINGS.values(), ids=SPELLINGS)
def test_bytes_in_the_body_are_decoded(source: str) -> None:
    assert read(source, NONE) == PNG


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("malformed", "neither a URL nor valid base64: 'malformed'"),
        ("a" * 1_001, "neither a URL nor valid base64"),
        ("ünïcode=", "neither a URL nor valid base64"),
        (TEXT[0] + "====", "valid base64"),
        (TEXT.replace("=", "") + "*", "valid base64"),
        ("", "empty"),
        ("data:image/png;base64,", "empty"),
        ("data:image/png;base64,###", "valid base64"),
        ("data:image/png,abc", "must be base64"),
        ("data:image/png;base64", "must begin with data:image/"),
        ("data:text/html;base64,aGVsbG8=", "must begin with data:image/"),
        ("data:,x", "must begin with"),
        ("file:///etc/passwd", "--media-path"),
        ("ftp://example.org/a.png", "neither a URL"),
    ],
)
def test_a_bad_source_is_refused_in_words(source: str, words: str) -> None:
    with pytest.raises(BadMedia, match=words):
        read(source, MediaSettings(max_bytes=10_000))


def test_too_many_bytes_are_refused_before_they_are_decoded() -> None:
    for source in (b64encode(bytes(101)).decode(), data_url(bytes(5_000)), "A" * 5_000):
        with pytest.raises(BadMedia, match="more than 100 bytes"):
            read(source, SMALL)
    assert read(b64encode(bytes(100)).decode(), SMALL) == bytes(100)


@pytest.mark.parametrize(
    ("source", "fetched"),
    [("http://a/", True), ("HTTPS://a/", True), ("httpx://a", False), ("http:/a", False), (data_url(PNG), False)],
)
def test_urls_are_told_from_the_rest(source: str, fetched: bool) -> None:
    assert is_url(source) is fetched


@pytest.fixture
def folder(tmp_path: Path) -> MediaSettings:
    """A folder with pictures, and things beside it that are not to be read."""
    root = tmp_path / "pictures"
    (root / "in" / "a folder").mkdir(parents=True)
    for path in (root / "a.png", root / "in" / "a folder" / "b.png", tmp_path / "secret.png"):
        path.write_bytes(PNG)
    (tmp_path / "pictures-too").mkdir()
    (tmp_path / "pictures-too" / "c.png").write_bytes(PNG)
    (root / "out.png").symlink_to(tmp_path / "secret.png")
    (root / "out").symlink_to(tmp_path)
    (root / "inner.png").symlink_to(root / "a.png")
    (root / "long.png").write_bytes(bytes(2_000))
    os.mkfifo(root / "pipe.png")
    return MediaSettings(path=root, max_bytes=1_000)


@pytest.mark.parametrize(
    "name", ["a.png", "in/a%20folder/b.png", "./in/../a.png", "inner.png", "/a.png", "//in//a folder/b.png"]
)
def test_a_file_below_the_folder_is_read(folder: MediaSettings, name: str) -> None:
    assert read(f"file://{name}", folder) == PNG


@pytest.mark.parametrize(
    "name",
    [
        *("../secret.png", "%2e%2e/secret.png", "in/../../secret.png", "out.png", "out/secret.png", "/etc/passwd"),
        *("../pictures-too/c.png", "missing.png", "in", "", "pipe.png", "/dev/zero", "a%00.png", "x" * 5_000),
    ],
)
def test_no_other_file_is_read(folder: MediaSettings, name: str) -> None:
    with pytest.raises(BadMedia, match="there is no file"):
        read(f"file://{name}", folder)


def test_a_file_over_the_limit_is_not_read(folder: MediaSettings) -> None:
    with pytest.raises(BadMedia, match="more than 1,000 bytes"):
        read("file://long.png", folder)
