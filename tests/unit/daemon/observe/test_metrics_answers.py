"""The memory that the metrics spend on leases is bounded, and full long before a run is old."""

from __future__ import annotations

import tracemalloc
from uuid import UUID

from rftd.daemon.observe.metrics_answers import AnswerTally
from rftd.daemon.observe.metrics_void import VoidRecords
from rftd.ops.metrics import Metrics
from rftd.streams.events.task import TaskLeased

LEASES = 100_000
MOST_BYTES = 4 * 1024**2


def test_leases_of_one_explorer_cost_little_however_many_there_were() -> None:
    tally = AnswerTally(VoidRecords(Metrics(version="1")))
    tracemalloc.start()
    try:
        for number in range(LEASES):
            tally.leased(_lease(number))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes <= MOST_BYTES


def _lease(number: int) -> TaskLeased:
    return TaskLeased(
        lease=UUID(int=1 << 120 | number),
        slot=0,
        worker=UUID(int=7),
        group=UUID(int=1),
        sequence=number,
        stage=0,
        row=0,
        epoch=0,
        rollouts=(0,),
        repeat_times=1,
        attempt=1,
        deadline_s=60.0,
        min_version=0,
    )
