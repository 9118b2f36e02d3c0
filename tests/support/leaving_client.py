"""A client that asks, stays for a while, and leaves."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress


async def ask_and_leave(host: str, port: int, request: bytes, chance: random.Random, longest_stay: float) -> str:
    """Leave at a random moment; returns in which way: by FIN or by RST."""
    way = chance.choice(("FIN", "RST"))
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        await writer.drain()
        stay = 0.0 if chance.random() < 0.2 else chance.uniform(0, longest_stay)
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1 << 20), stay)
        if way == "RST":
            plain = writer.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        writer.close()
        await asyncio.sleep(0)  # asyncio closes it in its next turn
    return way
