"""The newest events of a run that goes on, or is paused, however many records of others lie behind them."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.views import event_pages
from rftd.daemon.http.views.event_pages import partitions_of
from rftd.ops.clock import ManualClock
from rftd.ops.ids import SeededIds
from rftd.streams.events.experiment import ExperimentPaused, Fence
from rftd.streams.log.codec import Writer

OTHER = UUID(int=4)


@pytest.mark.anyio
@pytest.mark.parametrize("paused", [False, True])
async def test_they_are_found_behind_the_records_of_others(
    parts: DaemonParts, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    recorder = Recorder(seed=7)
    run = SyntheticRun(recorder, name="going", seed=7)
    run.begin()
    run.warm_up()
    run.explore()
    run.train()
    if paused:
        recorder.write(ExperimentPaused(reason="asked"), run.id)
    await parts.log.append(recorder.drafts)
    monkeypatch.setattr(event_pages, "SCANNED_BACK_RECORDS", 6000)
    monkeypatch.setattr(event_pages, "SCANNED_RECORDS", 600)
    clock = ManualClock(recorder.clock.now_ns() + 3600 * 10**9)
    writer = Writer(source="another", clock=clock, ids=SeededIds(clock, 1))
    for partition in set(await parts.log.heads()) & set(partitions_of(run.id)):
        fences = [Fence(role="trainer", owner=OTHER, epoch=n, previous=n - 1) for n in range(1, 1500)]
        await parts.log.append([writer.draft(event, experiment=OTHER, partition=partition) for event in fences])
    await parts.projector.catch_up()

    newest: list[str] = []
    query: dict[str, object] = {"newest": 5}
    while len(newest) < 5:
        answer = await client.get("/v1/experiments/going/events", params={**query, "limit": 5 - len(newest)})
        page = answer.json()
        newest += [event["id"] for event in page["items"]]
        query = {"cursor": page["next"]}
        assert page["more"] or len(newest) >= 5
    assert set(newest) == {str(draft.id) for draft in recorder.drafts[-5:]}
