"""What a check remembers on disk is what it was given, however little of it fits in memory."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest

from rftd.streams.events.experiment import HeadRef
from rftd.streams.log import topics
from rftd.streams.log.chain import GENESIS, link
from rftd.streams.log.topics import Partition
from rftd.streams.verify import identities
from rftd.streams.verify.heads import HeadsRemembered
from rftd.streams.verify.identities import Identities
from rftd.streams.verify.scratch import Bits, Scratch, Spool, Table


def test_rows_are_kept_when_their_page_is_put_away(tmp_path: Path) -> None:
    scratch, chance = Scratch(tmp_path), random.Random(1)
    table = Table(scratch, 8, page_rows=4, memory_size_bytes=64)
    known: dict[tuple[int, int], int] = {}
    for value in range(1, 3000):
        space, index = chance.randrange(5), chance.randrange(200)
        page, at = table.row(space, index)
        assert int.from_bytes(page[at : at + 8], "little") == known.get((space, index), 0)
        page[at : at + 8] = value.to_bytes(8, "little")
        known[space, index] = value
    found = {
        (space, first + number): int.from_bytes(page[8 * number : 8 * number + 8], "little")
        for space, first, page in table.pages()
        for number in range(4)
    }
    assert {place: value for place, value in found.items() if value} == known
    assert scratch.size_bytes > 0
    assert [first for first, _ in table.pages_of(2)] == list(range(0, 200, 4))
    scratch.close()


def test_a_spool_gives_every_row_in_its_order(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    spool = Spool(scratch, 24)
    rows = [number.to_bytes(24, "little") for number in range(100_000)]
    for start in range(0, len(rows), 7):
        spool.add(b"".join(rows[start : start + 7]))
    assert b"".join(bytes(block) for block in spool.blocks()) == b"".join(rows)
    assert len(spool) == len(rows)
    assert all(spool.row(number) == rows[number] for number in (0, 43_690, 43_691, 99_999))
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    scratch.close()


def test_bits_are_sets_of_numbers() -> None:
    bits = Bits()
    assert bits.add("a", 5)
    assert not bits.add("a", 5)
    assert bits.add("b", 5)
    assert bits.add("a", 100_000)
    assert bits.add("a", -3)
    assert bits.has("a", -3)
    assert sorted(bits.numbers()) == [("a", -3), ("a", 5), ("a", 100_000), ("b", 5)]
    bits.remove("a", 5)
    assert not bits.has("a", 5)
    assert bits.has("b", 5)


@pytest.mark.parametrize("window", [4, 1000])
def test_an_id_that_comes_again_is_found_near_and_far(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(identities, "_WINDOW_IDS", window)
    monkeypatch.setattr(identities, "_RUN_IDS", 16)
    known = Identities(Scratch())
    one, other = Partition(topics.EXPERIENCES, 1), Partition(topics.TASKS, 3)
    ids = [UUID(int=random.Random(number).getrandbits(128)) for number in range(200)]
    near = [known.first(id.bytes, one, offset) for offset, id in enumerate([*ids, ids[199], ids[2]])]
    assert near[:200] == [None] * 200
    assert near[200] == 199
    assert near[201] == (2 if window == 1000 else None)
    assert known.first(ids[7].bytes, other, 0) is None
    far = {frozenset(pair) for pair in known.twice()}
    there = {frozenset(((one, 7), (other, 0)))}
    assert far == there | ({frozenset(((one, 2), (one, 201)))} if window == 4 else set())
    assert known.places(ids[7]) == [(one, 7), (other, 0)]
    assert known.places(UUID(int=9)) == []


def test_a_remembered_head_is_compared_with_the_record_in_its_place() -> None:
    partition, chain = Partition(topics.WEIGHTS, 2), GENESIS
    heads, chains = HeadsRemembered(Scratch()), []
    for offset in [*range(70_000), *range(80_000, 80_010)]:
        chain = link(chain, b"head", offset.to_bytes(4, "little"))
        chains.append(chain)
        heads.note(partition, offset, chain)
    right = [HeadRef(*partition, 1, chains[0]), HeadRef(*partition, 69_999, chains[69_998])]
    right.append(HeadRef(*partition, 80_010, chains[-1]))
    heads.remember(right, "fence", partition, 5)
    assert list(heads.wrong()) == []
    heads.remember([HeadRef(*partition, 4, chains[0]), HeadRef(*partition, 80_011, chain)], "fence", partition, 6)
    wrong = [(loss.head.next_offset, there) for loss, there in heads.wrong()]
    assert wrong == [(4, True), (80_011, False)]
