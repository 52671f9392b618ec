"""`Facts`: data of a check that grows with the log, as rows on disk by position, and the findings.

A row is a packed struct with a numpy dtype of the same layout next to it: handlers write one row at a time, which
`struct` does faster than numpy, and the judges at the end read whole pages as arrays.
"""

from __future__ import annotations

from collections import Counter
from struct import Struct
from typing import Any, Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from rftd.ops.limits import MIB
from rftd.streams.log import topics
from rftd.streams.log.topics import Partition
from rftd.streams.verify.report import BrokenPromise
from rftd.streams.verify.scratch import Bits, Scratch, Spool, Table

SHOWN: Final = 200
"""Number of findings of one rule shown; the others are counted."""
_PLACE_BITS: Final = 44
"""Bits of the offset in a position as a number; the partition's number is above."""

ORIGIN: Final = Struct("<QQddIiiI")
"""An experience as produced: id, group, reward, priority, tokens, oldest and newest version, rollout."""
FATE: Final = Struct("<IIIIQQqII")
"""An experience's fate: experiment, flags, index among the group's members, stage, sequence and position of the group
closed with it, time (ns) of the next allowed use, uses, padding.
"""
FATE_AT: Final = ORIGIN.size
"""Offset of `FATE` within a row of `Facts.produced`."""
PRODUCED: Final = np.dtype(
    [
        ("id", "<u8"),
        ("group", "<u8"),
        ("reward", "<f8"),
        ("priority", "<f8"),
        ("tokens", "<u4"),
        ("oldest", "<i4"),
        ("newest", "<i4"),
        ("rollout", "<u4"),
        ("experiment", "<u4"),
        ("flags", "<u4"),
        ("member", "<u4"),
        ("stage", "<u4"),
        ("sequence", "<u8"),
        ("closed", "<u8"),
        ("eligible", "<i8"),
        ("uses", "<u4"),
        ("nothing", "<u4"),
    ]
)
"""`ORIGIN` and `FATE` as a numpy type."""
PRESENT: Final = 1
"""Flag: the experience is in the log."""
MEMBER: Final = 2
"""Flag: the experience belongs to a closed group."""
PLANNED: Final = 4
"""Flag: the experience was planned for a step."""
GONE: Final = 8
"""Flag: the experience was planned for the last time."""
RETIRED: Final = 16
"""Flag: the experience was retired."""

GROUP: Final = Struct("<QqqQQqqIIII")
"""A group, by its sequence: id, row, epoch, position and event of its close, the spine's offset after the first
retirement of a member, the first step using it, members, failed rollouts, flags, 1 once its row is known.
"""
GROUPS: Final = np.dtype(
    [
        ("group", "<u8"),
        ("row", "<i8"),
        ("epoch", "<i8"),
        ("closed", "<u8"),
        ("event", "<u8"),
        ("retired_at", "<i8"),
        ("used_step", "<i8"),
        ("members", "<u4"),
        ("failed", "<u4"),
        ("flags", "<u4"),
        ("given", "<u4"),
    ]
)
"""`GROUP` as a numpy type."""
LEASED: Final = 1
"""Flag of a group: a rollout of the group was leased."""
CLOSED: Final = 2
"""Flag of a group: the group is closed."""

STEP: Final = Struct("<QqQqII")
"""A step: its planned batch, the offset of the plan plus one, the checksum and the generation of its first execution,
the number of executions, its stage.
"""
STEPS: Final = np.dtype(
    [
        ("batch", "<u8"),
        ("plan", "<i8"),
        ("checksum", "<u8"),
        ("generation", "<i8"),
        ("executed", "<u4"),
        ("stage", "<u4"),
    ]
)
"""`STEP` as a numpy type."""
WINDOW: Final = Struct("<q")
"""A window: the first version of its groups, plus two; 0: none of its groups is known."""
RETIREMENT: Final = Struct("<16sQII")
"""A retirement: the experience, the spine's offset, the experiment, the number of the reason."""
ANSWERS: Final = np.dtype([("key", "<u8"), ("place", "<u8"), ("experiment", "<u4"), ("number", "<u4")])
"""An answer of a worker: its lease and its writer as one number, its position as a number, the experiment, the number
of its rollout or of its first row.
"""
ANNOUNCED: Final = np.dtype([("key", "<u8"), ("step", "<u8"), ("experiment", "<u4"), ("generation", "<u4")])
"""An announcement of weights named by a step: its digest as a number, the step, the experiment, the generation."""
ARTIFACT: Final = Struct("<32sI")
"""A sha256 and the experiment naming it."""


class Facts:
    """The data of all experiments that grows with their records, and the findings of the check."""

    def __init__(self, scratch: Scratch, *, chained: bool, files: bool) -> None:
        """Creates empty tables.

        `chained`: the log's records form a chain. `files`: files outside of the log are checked too.
        """
        self.scratch = scratch
        """The file on disk below the tables, with room for the judges' own rows."""
        self.chained = chained
        self.files = files
        """True if the files outside of the log are checked too."""
        self.produced = Table(scratch, ORIGIN.size + FATE.size, page_rows=4096, memory_size_bytes=32 * MIB)
        """`PRODUCED` rows by partition and offset of `rftd.experiences`."""
        self.groups = Table(scratch, GROUP.size, page_rows=256, memory_size_bytes=16 * MIB)
        """`GROUPS` rows by `space` and sequence."""
        self.steps = Table(scratch, STEP.size, page_rows=256, memory_size_bytes=8 * MIB)
        """`STEPS` rows by the number of the experiment and the step."""
        self.windows = Table(scratch, WINDOW.size, page_rows=512, memory_size_bytes=4 * MIB)
        """`WINDOW` rows by `space` and window."""
        self.retirements = Spool(scratch, RETIREMENT.size)
        """`RETIREMENT` rows, in the order of the spine."""
        self.artifacts = Spool(scratch, ARTIFACT.size)
        """`ARTIFACT` rows: arrays stored outside of their events."""
        self.answers = Spool(scratch, ANSWERS.itemsize)
        """`ANSWERS` rows."""
        self.leases = Spool(scratch, 8)
        """Leases with their holders: numbers like the key of an answer."""
        self.announced = Spool(scratch, ANNOUNCED.itemsize)
        """`ANNOUNCED` rows."""
        self.published = Spool(scratch, 8)
        """Announcements of weights in the log: numbers like the key of one named by a step."""
        self.rows = Bits()
        """Rows of tasks leased, under (experiment, stage, epoch); rows of datasets planned, under (experiment, stage,
        dataset, epoch).
        """
        self.drawn = Bits()
        """Versions of the tokens drawn by each worker, under (experiment, source of the worker)."""
        self.activated = Bits()
        """Versions reported as loaded by each worker, under (experiment, source of the worker)."""
        self.newest_activated: dict[object, int] = {}
        """Newest version reported as loaded by each worker, under the keys of `activated`."""
        self.reasons: list[str] = []
        """The reasons of retirements, by their number."""
        self.ends: dict[Partition, int] = {}
        """The end of the reading of each partition."""
        self.leased_below: dict[Partition, int] = {}
        """Offset below which every answer's lease was read, because `rftd.tasks` was read to a later end."""
        self.findings: list[BrokenPromise] = []
        self.left_out: Counter[str] = Counter()
        """Number of findings beyond those listed, by rule."""
        self._shown: Counter[str] = Counter()
        self._spaces: dict[tuple[int, int], int] = {}

    def note(self, rule: str, experiment: UUID | None, finding: str) -> None:
        """Records a finding; beyond the first `SHOWN` of a rule, it is only counted."""
        if self._shown[rule] >= SHOWN:
            self.left_out[rule] += 1
            return
        self._shown[rule] += 1
        self.findings.append(BrokenPromise(rule, experiment, finding))

    def space(self, experiment: int, stage: int) -> int:
        """Returns the number under which tables store the groups and windows of a stage."""
        return self._spaces.setdefault((experiment, stage), len(self._spaces))

    def reason(self, text: str) -> int:
        """Returns the number of a retirement's reason; a new reason gets a new number."""
        if text not in self.reasons:
            self.reasons.append(text)
        return self.reasons.index(text)

    def holds_experience(self, partition: int, offset: int) -> bool:
        """True if the position lies in the part of `rftd.experiences` read by the check."""
        return 0 <= offset < self.ends.get(Partition(topics.EXPERIENCES, partition), 0)


def place_number(partition: int, offset: int) -> int:
    """Encodes a position of one stream as a number above 0."""
    return (partition << _PLACE_BITS | offset) + 1


def place_of(number: int) -> tuple[int, int]:
    """Decodes a `place_number` into partition and offset."""
    return (number - 1) >> _PLACE_BITS, (number - 1) & (1 << _PLACE_BITS) - 1


def rows_of(page: bytearray, kind: np.dtype[Any]) -> NDArray[Any]:
    """Returns the rows of a table's page, as a writable view."""
    return np.frombuffer(page, dtype=kind)
