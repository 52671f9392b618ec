"""The hash chain is a format: what a log holds must verify for ever."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from rftd.streams.log.chain import GENESIS, link


@pytest.mark.parametrize("size", [0, 1, 2046, 2047, 2048, 5000, 128 * 1024 - 1, 128 * 1024, 128 * 1024 + 1])
def test_the_link_is_blake2b_of_previous_length_head_value(size: int) -> None:
    head, value = b"head", bytes(index % 251 for index in range(size))
    whole = blake2b(GENESIS + (4).to_bytes(4, "little") + head + value, digest_size=16)
    assert link(GENESIS, head, value) == whole.digest()


def test_the_first_link_never_changes() -> None:
    assert link(GENESIS, b"head", b"value").hex() == "ebef49053975f0c7e055ad61ce5d5ba0"


def test_moving_a_byte_from_head_to_value_changes_the_link() -> None:
    assert link(GENESIS, b"ab", b"c") != link(GENESIS, b"a", b"bc")
