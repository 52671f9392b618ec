"""The rollouts of leases: their order, their settings, and the events that they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import numpy as np
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
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed, SamplingSpan, Span
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.rollout.leased import LeasedRollouts
from rftd.workers.rollout.rollouts import RolloutOutcome, Rollouts
from rftd.workers.workflows.attempt import RolloutRequest
from rftd.workers.workflows.result import RolloutResult

pytestmark = pytest.mark.anyio


async def test_the_first_lease_gets_its_places_before_the_next(tmp_path: Path) -> None:
    engine = Fated()
    bench = Bench(tmp_path, engine)
    leased = bench.leased()
    ended: list[UUID] = []

    async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
        ended.extend(event.group for event in events)

    leases = [msgspec.structs.replace(LEASE, group=UUID(int=number), rollouts=tuple(range(6))) for number in (1, 2)]
    await asyncio.gather(*(leased.run(lease, cast(Any, Rows()), take, row=LEASE.row) for lease in leases))
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

    await bench.leased().run(msgspec.structs.replace(LEASE, rollouts=(0, 1, 2)), cast(Any, Rows()), take, row=LEASE.row)
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
        await bench.leased(greedy_rollouts=1).run(LEASE, cast(Any, Rows()), _nowhere, row=LEASE.row)
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

        await bench.leased(trained=trained).run(LEASE, cast(Any, Rows(spec)), take, row=LEASE.row)
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


SILENT = RolloutResult(
    tokens=np.arange(6, dtype=np.uint32),
    prompt_tokens=2,
    loss_mask=np.ones(4, np.uint8),
    logprobs=np.zeros(4, np.float32),
    spans=(Span(0, 0, 0, 4),),
    reward=1.0,
    sampling=(SamplingSpan(1, 3, 0.25),),
)
"""A result that says of half of its tokens how they were drawn."""


class SilentRollouts:
    """Rollouts whose workflow says as little."""

    async def run(self, requests: Sequence[RolloutRequest], _taskset: Any, ended: Any, *, timeout_s: float) -> None:
        await ended([RolloutOutcome(each, SILENT, timeout_s) for each in requests])


@pytest.mark.parametrize(
    ("temperature", "said"), [(1.0, [(1, 3, 0.25)]), (0.5, [(0, 1, 0.5), (1, 3, 0.25), (3, 4, 0.5)])]
)
async def test_tokens_of_which_nothing_is_said_are_those_of_their_own_taskset(
    tmp_path: Path, temperature: float, said: list[tuple[int, int, float]]
) -> None:
    """A trainer takes tokens of which nothing is said for drawn as the first taskset says."""
    found: list[ExperienceProduced | RolloutFailed] = []

    async def take(events: Sequence[ExperienceProduced | RolloutFailed]) -> None:
        found.extend(events)

    sampling = SamplingSpec(temperature=temperature)
    artifacts = Bench(tmp_path, Fated()).artifacts
    silent = cast(Rollouts, SilentRollouts())
    leased = LeasedRollouts(silent, artifacts=artifacts, seed=1, sampling=sampling, default_sampling=SamplingSpec())
    await leased.run(LEASE, cast(Any, Rows()), take, row=LEASE.row)
    for each in found:
        assert isinstance(each, ExperienceProduced)
        assert [(span.start, span.end, span.temperature) for span in each.sampling] == said
    assert found
