"""The rollouts of leases: their order, their settings, and the events that they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from synthetic.worlds.rollout_bench import (
    LEASE,
    MODEL,
    RETRIES,
    SHORT_S,
    SIZE,
    SPEC,
    Bench,
    Fated,
    FatedGroup,
    Rows,
    number_of,
    play,
    undated,
)

from rftd.ops.errors import RolloutTimeoutError
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.streams.spec import SamplingSpec

pytestmark = pytest.mark.anyio


async def test_the_first_lease_gets_its_places_before_the_next(tmp_path: Path) -> None:
    engine = Fated()
    bench = Bench(tmp_path, engine)
    leased = bench.leased()
    ended: list[UUID] = []

    async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
        ended.extend(event.group for event in events)

    leases = [msgspec.structs.replace(LEASE, group=UUID(int=number), rollouts=tuple(range(6))) for number in (1, 2)]
    await asyncio.gather(*(leased.run(lease, cast(Any, Rows()), take) for lease in leases))
    assert ended == [UUID(int=1)] * 6 + [UUID(int=2)] * 6


@pytest.mark.parametrize("made", [Fated, FatedGroup])
async def test_no_time_out_runs_while_the_outbox_is_full(tmp_path: Path, made: Callable[[], Fated]) -> None:
    """Who hands over waits longer than an attempt may take; what ended meanwhile counts."""
    bench = Bench(tmp_path, made(), max_timeout_s=SHORT_S, max_retry_times=0)
    found: list[ExperienceProduced | RolloutFailed] = []
    loop = asyncio.get_running_loop()

    async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
        wait: asyncio.Future[None] = loop.create_future()
        loop.call_later(2 * SHORT_S, wait.set_result, None)
        await wait
        found.extend(events)

    await bench.leased().run(msgspec.structs.replace(LEASE, rollouts=(0, 1, 2)), cast(Any, Rows()), take)
    assert len(found) == 3
    assert all(isinstance(event, ExperienceProduced) for event in found)


async def test_a_lease_s_own_time_out_holds_where_it_has_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FatedGroup("hang", "hang", "hang"))
    played = await bench.group(Rows(), timeout_s=SHORT_S)
    assert f"{SHORT_S:g} s" in played.error
    assert played.codes == {RolloutTimeoutError.code}


async def test_together_leaves_what_each_would_leave_alone(tmp_path: Path) -> None:
    found = []
    for kind, way in (("together", "group"), ("together", "one"), ("one by one", "group"), ("threads", "one")):
        _, bench = await play(tmp_path, way, kind)
        found.append(sorted(map(undated, bench.events), key=number_of))
        assert len({request.sampling.seed for request in bench.engine.asked}) == SIZE
    assert found[0] == found[1] == found[2] == found[3]


async def test_greedy_rollouts_go_with_their_group(tmp_path: Path) -> None:
    for made in (Fated, FatedGroup):
        bench = Bench(tmp_path, made())
        await bench.leased(greedy_rollouts=1).run(LEASE, cast(Any, Rows()), _nowhere)
        temperatures = {request.id: request.sampling.temperature for request in bench.engine.asked}
        assert [temperatures[id] for id in bench.ids("group")] == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("trained", [True, False])
async def test_what_cannot_be_trained_fails_where_it_is_trained(tmp_path: Path, trained: bool) -> None:
    spec = msgspec.structs.replace(SPEC, sampling=SamplingSpec(temperature=0.001))
    for made in (Fated, FatedGroup):
        bench = Bench(tmp_path, made(), spec=spec)
        found: list[ExperienceProduced | RolloutFailed] = []

        async def take(events: Sequence[Any], found: list[Any] = found) -> None:
            found.extend(events)

        await bench.leased(trained=trained).run(LEASE, cast(Any, Rows(spec)), take)
        assert {isinstance(event, RolloutFailed) for event in found} == {trained}
        assert len(bench.engine.asked) == SIZE * (RETRIES + 1 if trained else 1)
        # Nothing trains on an evaluation, whatever its settings.
        assert all((await bench.evaluation(Rows(spec))).answered.values())


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("made", [Fated, FatedGroup])
async def test_a_prompt_that_does_not_fit_is_not_asked(tmp_path: Path, cut: bool, made: Callable[[], Fated]) -> None:
    model = msgspec.structs.replace(MODEL, max_prompt_tokens=2, enable_prompt_truncation=cut)
    bench = Bench(tmp_path, made(), model=model)
    played = await bench.group(Rows())
    assert not bench.engine.asked
    assert set(played.answered.values()) == {cut}
    assert ("the limit is 2" in played.error) is not cut


async def _nowhere(events: Sequence[object]) -> None:
    return None
