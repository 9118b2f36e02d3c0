"""Compressed bodies, decompressed piece by piece: gzip, deflate and zstd."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.datastructures import Headers

from pyllmcancel.server.errors.responses import ApiError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from starlette.types import Scope

PIECE = 1 << 16  # bytes that are decompressed at once
WINDOW: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 23}  # 8 MiB, HTTP's limit (RFC 9659)
NAMES = {"x-gzip": "gzip"}
MAX_STREAMS = 1_000  # in a row: an empty one costs a decompressor
CLOSE = {"Connection": "close"}  # the rest of the body is not read


def _inflater(data: bytes) -> Any:
    # Some clients leave zlib's header out, whose first byte ends with an 8 as no other does.
    return zlib.decompressobj(zlib.MAX_WBITS if data[0] & 15 == 8 else -zlib.MAX_WBITS)


# Each makes a decompressor for one stream, by its first bytes.
MAKERS: Mapping[str, Callable[[bytes], Any]] = {
    "gzip": lambda _: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "deflate": _inflater,
    "zstd": lambda _: zstd.ZstdDecompressor(options=WINDOW),
}


class Decoder:
    """Decompresses one body, which may be several streams in a row."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._stream: Any = None
        self._n_streams = 0

    @classmethod
    def of(cls, scope: Scope) -> Decoder | None:
        """Return a request's decoder; None if its body is not compressed, ApiError 415 if it is in another way."""
        named = ",".join(Headers(scope=scope).getlist("content-encoding")).strip().lower()
        encoding = NAMES.get(named, named)
        if encoding in ("", "identity"):
            return None
        if encoding not in MAKERS:
            message = f"the Content-Encoding {named[:64]!r} is not supported; these are: {', '.join(MAKERS)}"
            headers = CLOSE | {"Accept-Encoding": ", ".join(MAKERS)}
            raise ApiError(415, message, code="unsupported_encoding", extra_headers=headers)
        return cls(encoding)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Iterate over the content in these bytes, in pieces of `PIECE` bytes at most; ApiError if they are invalid."""
        piece = b""
        try:
            while data or len(piece) == PIECE:
                if self._stream is None or self._stream.eof:
                    if not data:
                        return
                    self._stream = MAKERS[self._encoding](data)
                    self._n_streams += 1
                    if self._n_streams > MAX_STREAMS:
                        raise self._invalid(f"it has more than {MAX_STREAMS} parts")
                piece = self._stream.decompress(data, PIECE)
                data = self._stream.unused_data if self._stream.eof else getattr(self._stream, "unconsumed_tail", b"")
                if piece:
                    yield piece
        except (zlib.error, zstd.ZstdError) as error:
            raise self._invalid(str(error)) from None

    def end(self) -> None:
        """Raise ApiError if the body is not complete."""
        if self._stream is not None and not self._stream.eof:
            raise self._invalid("it ends too early")

    def _invalid(self, why: str) -> ApiError:
        message = f"the body is not valid {self._encoding}, which its Content-Encoding names: {why}"
        return ApiError(400, message, code="invalid_encoding", extra_headers=CLOSE)


def drop_encoding_headers(scope: Scope) -> None:
    """Take the headers out of a request that are not those of its decompressed body."""
    stale = (b"content-encoding", b"content-length")
    scope["headers"] = [pair for pair in scope["headers"] if pair[0].lower() not in stale]
