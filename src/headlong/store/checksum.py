"""What a file's bytes add up to: CRC-32 over the header, and over the CRC-32s of the data, 16 MiB at a time.

It stands in the header's metadata as eight hexadecimal digits, and counts as eight zeros while it is taken. Every damage of
up to 32 bits in a row is found, any other but once in 4,000,000,000 times. It is no signature: who can write the file can
write its checksum.
"""

from __future__ import annotations

import struct
import zlib
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import suppress

PIECE = 1 << 24
KEY = "headlong crc32"
NONE = "00000000"
START = f'{{"__metadata__":{{"{KEY}":"'.encode()
"""How the header of a file with a checksum starts, so that the digits are found again once the data is written."""


class Checksum:
    """CRC-32 of the data in pieces, as it is written: :meth:`add` takes it in runs of any length."""

    def __init__(self) -> None:
        self._of_pieces: list[int] = []
        self._open, self._length = 0, 0

    def add(self, data: memoryview) -> None:
        while len(data):
            some = data[: PIECE - self._length]
            self._open, self._length = zlib.crc32(some, self._open), self._length + len(some)
            data = data[len(some) :]
            if self._length == PIECE:
                self._close()

    def _close(self) -> None:
        self._of_pieces.append(self._open)
        self._open, self._length = 0, 0

    def text(self, header: bytes) -> str:
        """The checksum of a file that starts with ``header``, its own digits zeros."""
        if self._length:
            self._close()
        return _joined(header, self._of_pieces)


def checksum(header: memoryview, data: memoryview, threads: int = 2) -> str:
    """The checksum of a file: its header with the digits as zeros, and its data, pieces side by side.

    Nobody waits for a thread: one that the system does not start, or that dies at its start for want of memory, would never
    come. Pieces that another thread has not finished when none is left are taken again.
    """
    pieces = list(_cut(data))
    sums: list[int | None] = [None] * len(pieces)
    left = iter(range(len(pieces)))

    def take() -> None:
        with suppress(MemoryError):
            for place in left:
                sums[place] = zlib.crc32(pieces[place])

    for _ in range(min(threads, len(pieces)) - 1):
        try:
            start_new_thread(take, ())
        except (RuntimeError, MemoryError):
            break
    take()
    found = [zlib.crc32(piece) if known is None else known for known, piece in zip(sums, pieces, strict=True)]
    head = bytearray(header)
    place = 8 + len(START)
    if head[8:place] == START:
        head[place : place + len(NONE)] = NONE.encode()
    return _joined(bytes(head), found)


def _cut(data: memoryview) -> Iterator[memoryview]:
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def _joined(header: bytes, pieces: list[int]) -> str:
    return f"{zlib.crc32(struct.pack(f'<{len(pieces)}I', *pieces), zlib.crc32(header)):08x}"
