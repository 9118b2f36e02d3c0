"""Pictures and sounds are measured before they are decoded: files that are cut, that lie, or that are none."""

import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from pyllmcancel.media.errors import BadMedia
from pyllmcancel.media.pictures import Size, check_picture
from pyllmcancel.media.sounds import TRIMMED, check_sound, least_seconds, silence
from pyllmcancel.pausing import no_pause
from tests.support.media_files import bmp, chunk, flac_head, gif, jpeg_head, mp3, png, wav

MOST = 1 << 20  # pixels
SECONDS = 60.0
CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"  # files that encoders in use have written
ID3 = b"ID3\4\0\0" + bytes((0, 0, 0, 10)) + bytes(10)

PICTURES = {
    "png": (png(8, 4), (8, 4)),
    "png in grey": (png(8, 4, form=(1, 0), pixels=b"\0\xff" * 4), (8, 4)),
    "png with 16 bits and alpha": (png(2, 2, form=(16, 6), pixels=(b"\0" + bytes(16)) * 2), (2, 2)),
    "interlaced png": (png(4, 4, interlaced=1, pixels=bytes(3 * 16 + 4 * 4)), (4, 4)),
    "jpeg": (jpeg_head(640, 480), (640, 480)),
    "progressive jpeg": (jpeg_head(640, 480, marker=0xC2, scans=10), (640, 480)),
    "jpeg with a fill byte": (jpeg_head().replace(b"\xff\xc0", b"\xff\xff\xff\xc0", 1), (16, 16)),
    "gif": (gif(3, 2), (3, 2)),
    "bmp": (bmp(5, 3), (5, 3)),
    "bmp from the top down": (bmp(5, -3), (5, 3)),
}
BAD_PICTURES = {
    "nothing": (b"", "an empty file is not supported"),
    "a text": (b"hello, I am no picture", "this format is not supported; PNG"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG is not supported"),
    "html": (b"<!DOCTYPE html><html>", "HTML is not supported"),
    "webp": (b"RIFF\x1a\0\0\0WEBPVP8 " + bytes(20), "WebP is not supported"),
    "heic": (b"\0\0\0\x1cftypheic" + bytes(20), "HEIC is not supported"),
    "a huge png in a kilobyte": (png(100_000, 100_000, pixels=bytes(900)), "100,000 x 100,000 pixels, but at most"),
    "a png without pixels": (png(0, 5), "it has 0 x 5 pixels"),
    "a png that inflates": (png(8, 8, pixels=bytes(9 << 20)), "more pixels than its header says"),
    "a png with too few pixels": (png(8, 8, pixels=bytes(20)), "cut short"),
    "a png cut in its header": (png()[:20], "header is cut short"),
    "a png cut in its pixels": (png(64, 64, pixels=random.Random(1).randbytes(64 * 193))[:-200], "cut short"),
    "a png without an end": (png()[:-12], "cut short"),
    "a png with damaged pixels": (png()[:33] + chunk(b"IDAT", b"not deflated") + chunk(b"IEND", b""), "damaged"),
    "a png that begins otherwise": (png()[:8] + chunk(b"tEXt", b"x" * 13) + png()[8:], "begin with its header"),
    "a png of no colour type": (png(form=(8, 5)), "values that do not exist"),
    "a png chunk of 4 GB": (png()[:33] + b"\xff\xff\xff\xffIDAT" + bytes(50), "cut short"),
    "a huge jpeg": (jpeg_head(65_000, 65_000), "65,000 x 65,000 pixels"),
    "a jpeg without a height": (jpeg_head(16, 0), "16 x 0 pixels"),
    "a jpeg with many scans": (jpeg_head(scans=100), "more than 64 scans"),
    "an arithmetic jpeg": (jpeg_head(marker=0xC9), "baseline and progressive are"),
    "a jpeg cut in its frame": (jpeg_head()[:24], "cut short"),
    "a jpeg of markers only": (b"\xff\xd8" + b"\xff" * 100, "cut short"),
    "a jpeg of tags only": (b"\xff\xd8" + b"\xff\xe0\0\2" * 5_000, "no header of its frame"),
    "a jpeg that is noise": (b"\xff\xd8\xff" + bytes(1_000), "no header of its frame"),
    "a gif bomb": (gif(65_535, 65_535), "65,535 x 65,535 pixels"),
    "a gif cut in its header": (gif()[:9], "cut short"),
    "a huge bmp": (bmp(4, 4)[:18] + struct.pack("<ii", 2**31 - 1, -(2**31)) + bmp()[26:], "the BMP is cut short"),
    "a bmp with fewer pixels": (bmp(4, 4)[:18] + struct.pack("<ii", 400, 400) + bmp(4, 4)[26:], "cut short"),
    "a bmp of another kind": (bmp(header=99), "this kind of BMP"),
    "a bmp of 7 bits": (bmp(depth=24)[:28] + b"\7\0" + bmp()[30:], "values that do not exist"),
}
SOUNDS = {
    "wav": (wav(2), 2.0),
    "a wav with another chunk": (wav(2)[:36] + b"LIST\3\0\0\0abc\0" + wav(2)[36:], 2.0),
    "flac": (flac_head(32_000), 2.0),
    "flac behind a tag": (ID3 + flac_head(32_000), 2.0),
    "mp3": (mp3(50), 1.8),
    "mp3 behind a tag": (ID3 + mp3(50), 1.8),
}
BAD_SOUNDS = {
    "nothing": (b"", "not supported"),
    "a picture": (png(), "not supported; WAV, MP3 and FLAC are"),
    "ogg": (b"OggS" + bytes(40), "not supported"),
    "ogg behind a tag": (ID3 + b"OggS" + bytes(40), "not supported"),
    "a long wav": (wav(61), "longer than 60 s"),
    "a slow wav": (wav(1, rate=100).replace(struct.pack("<I", 100), struct.pack("<I", 1)), "longer than 60 s"),
    "a wav that lies": (wav(claimed=0xFFFF_FFFF), "fewer samples than its header says"),
    "an empty wav": (wav(0), "no samples"),
    "a compressed wav": (wav(form=2), "this kind of WAV"),
    "a wav of samples only": (wav()[:12] + wav()[36:], "does not say how"),
    "a wav cut in its header": (wav()[:30], "cut short"),
    "a wav of chunks only": (wav()[:12] + b"LIST\0\0\0\0" * 5_000, "no samples"),
    "a flac of three years": (flac_head((1 << 36) - 1, 1), "longer than 60 s"),
    "a flac of unknown length": (flac_head(0), "does not say how long"),
    "a flac without a header": (flac_head(1, kind=4), "does not begin with its header"),
    "a flac cut in its header": (flac_head(100)[:12], "cut short"),
    "a long mp3": (mp3(2_000), "longer than 60 s"),
    "an mp3 of headers only": (b"\xff\xfb\x18" * 100_000, "longer than 60 s"),
    "a tag without a sound": (ID3, "no samples"),
    "tags that never end": (b"ID3\4\0\0\x7f\x7f\x7f\x7f" + bytes(50), "no samples"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_measured(name: str) -> None:
    data, size = PICTURES[name]
    assert check_picture(data, MOST, no_pause) == Size(*size)


def test_files_of_encoders_in_use_are_measured() -> None:
    pictures = {path.name: check_picture(path.read_bytes(), MOST, no_pause) for path in (CORPUS / "pictures").iterdir()}
    assert pictures.pop("png-16") == (5, 6)
    assert set(pictures.values()) == {(16, 12)}
    sounds = {path.name: check_sound(path.read_bytes(), SECONDS, no_pause) for path in (CORPUS / "sounds").iterdir()}
    assert sounds["wav-16"] == sounds["flac"] == pytest.approx(0.025)
    assert sounds["mp3"] >= 800 / 16_000 >= least_seconds((CORPUS / "sounds" / "mp3").read_bytes(), SECONDS)


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_a_bad_picture_is_refused_in_words(name: str) -> None:
    data, words = BAD_PICTURES[name]
    with pytest.raises(BadMedia, match=words):
        check_picture(data, MOST, no_pause)


@pytest.mark.parametrize("name", SOUNDS)
def test_a_sound_is_measured(name: str) -> None:
    data, seconds = SOUNDS[name]
    assert check_sound(data, SECONDS, no_pause) == pytest.approx(seconds)
    assert 0 <= least_seconds(data, SECONDS) <= seconds + 1e-9
    assert least_seconds(data, SECONDS) == pytest.approx(seconds) or "mp3" in name


@pytest.mark.parametrize("name", BAD_SOUNDS)
def test_a_bad_sound_is_refused_in_words(name: str) -> None:
    data, words = BAD_SOUNDS[name]
    with pytest.raises(BadMedia, match=words):
        check_sound(data, SECONDS, no_pause)
    assert least_seconds(data, 2 * SECONDS) >= 0


def test_frames_of_an_mp3_that_follow_each_other_are_certain_and_later_ones_are_not() -> None:
    least = [least_seconds(data, SECONDS) for data in (mp3(90), ID3 + mp3(90), mp3(50) + b"?" + mp3(40), mp3(90)[:-1])]
    assert [seconds + TRIMMED for seconds in least] == pytest.approx([n * 0.036 for n in (90, 90, 50, 89)])
    assert least_seconds(mp3(5_000), 9.0) == pytest.approx(9.036 - TRIMMED)
    assert least_seconds(silence(7), SECONDS) == 7


@pytest.mark.parametrize("name", [*PICTURES, *SOUNDS])
def test_damage_anywhere_is_an_answer_or_a_refusal(name: str) -> None:
    is_picture = name in PICTURES
    data = PICTURES[name][0] if is_picture else SOUNDS[name][0]
    chance = random.Random(name)
    for _ in range(300):
        damaged = bytearray(data[: chance.randint(1, len(data))] if chance.random() < 0.3 else data)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(min(len(damaged), 120))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        # Any other error fails the test.
        with suppress(BadMedia):
            if is_picture:
                size = check_picture(bytes(damaged), MOST, no_pause)
                assert 0 < size.width * size.height <= MOST
            else:
                assert least_seconds(bytes(damaged), SECONDS) >= 0
                assert 0 < check_sound(bytes(damaged), SECONDS, no_pause) <= SECONDS


def test_the_measuring_of_a_long_file_can_be_given_up() -> None:
    class GivenUpError(Exception):
        pass

    def pause() -> None:
        raise GivenUpError

    for check, data in ((check_picture, png()), (check_sound, mp3(50))):
        with pytest.raises(GivenUpError):
            check(data, 1 << 20, pause)
