"""The source of identity: UUIDv7 for new objects, UUIDv5 for objects derived from a cause (RFC 9562)."""

from __future__ import annotations

import os
import random
from binascii import hexlify
from collections.abc import Iterable
from hashlib import sha1
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID, SafeUUID

if TYPE_CHECKING:
    from rftd.ops.clock import Clock

NAMESPACE = UUID("6f6e6520-6c6f-5f67-8000-726674640000")
"""The namespace of every derived id; changing it would make retries look new."""
_BEGUN = sha1(NAMESPACE.bytes, usedforsecurity=False)
"""The common prefix digest of all derived ids, computed once: five ids are derived for each rollout."""
_UNMARKED: Final = (1 << 128) - 1 & ~(0xF << 76 | 0b11 << 62)
"""The mask of all bits except version and variant."""
_MARKED: Final = 0x5 << 76 | 0b10 << 62
"""Version and variant bits of a UUID derived from a cause."""
_UNKNOWN: Final = SafeUUID.unknown
"""State of a UUID whose uniqueness among processes is not known."""
# A UUID's attributes cannot be assigned, but the slots can.
_set_int = UUID.__dict__["int"].__set__
"""Setter of a UUID's integer, without the checks of its constructor."""
_set_is_safe = UUID.__dict__["is_safe"].__set__
"""Setter of a UUID's safety state."""


class Ids(Protocol):
    """A source of fresh ids: random in production, seeded in simulations and golden files."""

    def new(self) -> UUID:
        """Returns a fresh, time-ordered id (UUIDv7)."""
        ...


class SystemIds:
    """UUIDv7 from a clock and the machine's randomness; monotonic within a process."""

    def __init__(self, clock: Clock) -> None:
        """Takes the time of ids from `clock`."""
        self._clock = clock
        self._last = 0

    def new(self) -> UUID:
        # Never below the last one: ids keep the order of creation even when the wall clock is set back.
        """Returns a fresh, time-ordered id (UUIDv7)."""
        self._last = max(self._last + 1, (self._clock.now_ns() // 1_000_000) << 12)
        return _v7(self._last, int.from_bytes(os.urandom(8), "big"))


class SeededIds:
    """UUIDv7 from a clock and a seed; for simulations and golden files."""

    def __init__(self, clock: Clock, seed: int) -> None:
        """Takes the time of ids from `clock`, and all other bits from `seed`."""
        self._clock = clock
        self._random = random.Random(seed)  # noqa: S311 - reproducible on purpose
        self._last = 0

    def new(self) -> UUID:
        """Returns the next id of the seeded sequence (UUIDv7)."""
        self._last = max(self._last + 1, (self._clock.now_ns() // 1_000_000) << 12)
        return _v7(self._last, self._random.getrandbits(62))


def _v7(ticks: int, noise: int) -> UUID:
    """Returns an id in RFC 9562 layout: 48 bits of milliseconds, 12 bits of sub-millisecond counter, 62 random bits."""
    milliseconds = ticks >> 12
    counter = ticks & 0xFFF
    head_bits = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | counter << 64
    return _uuid(head_bits | 0b10 << 62 | (noise & (1 << 62) - 1))


def _uuid(number: int) -> UUID:
    """Returns UUID(int=number) without the constructor, which costs as much as the whole derivation."""
    uuid = object.__new__(UUID)
    _set_int(uuid, number)
    _set_is_safe(uuid, _UNKNOWN)
    return uuid


def derive(cause: UUID, *parts: str | int) -> UUID:
    """Returns the id of an object derived from `cause`; equal parts give equal ids, on any machine."""
    named = cause.bytes.hex()
    for name in parts:
        named += f"/{name!s}"
    digest = _BEGUN.copy()
    digest.update(named.encode())
    return _derived(digest.digest())


def derive_each(cause: UUID, *parts: str | int, numbers: Iterable[int]) -> list[UUID]:
    """Returns `derive(cause, *parts, number)` for each number, digesting the common prefix once."""
    begun = _BEGUN.copy()
    # The text must equal that of `derive`, to the last slash: an object named through either has an equal id.
    begun.update("/".join((cause.hex, *map(str, parts), "")).encode())
    ids = []
    for number in numbers:
        digest = begun.copy()
        digest.update(b"%d" % number)
        ids.append(_derived(digest.digest()))
    return ids


def derive_from_each(causes: Iterable[UUID], *parts: str | int) -> list[UUID]:
    """Returns `derive(cause, *parts)` for each cause, faster than separate calls."""
    end = "".join(f"/{name!s}" for name in parts).encode()
    ids = []
    for cause in causes:
        digest = _BEGUN.copy()
        digest.update(hexlify(cause.bytes) + end)
        ids.append(_derived(digest.digest()))
    return ids


def _derived(digest: bytes) -> UUID:
    """Returns the UUIDv5 for a finished sha1 digest."""
    return _uuid(int.from_bytes(digest[:16], "big") & _UNMARKED | _MARKED)
