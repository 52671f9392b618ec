"""An engine that failed fails no rollout: its explorer ends, and what was leased to it is given out again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from synthetic.worlds.rollout_bench import LEASE, Bench, Fated, Rows

from rftd.ops.errors import WorkError
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.workers.generation.engine import EngineStats, check_lives

pytestmark = pytest.mark.anyio


class Dead(Fated):
    """Answers nothing any more, and says so."""

    def stats(self) -> EngineStats:
        return EngineStats(tokens_total=0, requests_total=0, running=0, waiting=0, error="process 7 ended")


async def test_no_failure_of_a_dead_engine_is_handed_over(tmp_path: Path) -> None:
    engine = Dead(*["error"] * 9)
    bench = Bench(tmp_path, engine)
    told: list[ExperienceProduced | RolloutFailed] = []

    async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
        check_lives(cast(Any, engine))
        told.extend(events)

    with pytest.raises(ExceptionGroup) as raised:
        await bench.leased().run(LEASE, cast(Any, Rows()), take, row=LEASE.row)
    assert raised.group_contains(WorkError, match="process 7 ended")
    assert told == []
    assert bench.at_rest()


async def test_an_engine_without_an_error_lives() -> None:
    check_lives(cast(Any, Fated()))
