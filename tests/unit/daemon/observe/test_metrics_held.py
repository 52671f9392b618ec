"""Accelerator seconds and their cost: of the tables, the same for every daemon, and never less than before."""

from __future__ import annotations

from uuid import UUID

import click
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import spec_of

from rftd.daemon.cli.price import Price
from rftd.daemon.observe.metrics_spec import Declared, declared_by
from rftd.daemon.observe.metrics_state import HEARD_S, AtScrape, show_state
from rftd.ops.metric_totals import ReadTotals
from rftd.ops.metrics import Metrics
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.standing import list_figures, list_held
from rftd.streams.events.experiment import ExperimentCancelled, ExperimentSubmitted
from rftd.streams.events.worker import WorkerLost, WorkerStarted, WorkerStopped
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio

S_NS = 10**9


class Workers:
    """An experiment whose workers come and go, and what a daemon that begins now shows of them."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.id = self.recorder.ids.new()
        self.recorder.write(ExperimentSubmitted(spec=spec_of("e", 3)), self.id)
        self.declared = Declared(declared_by(self.id, spec_of("e", 3)).stages, {"explorer": 2, "trainer": 0})

    def start(self, role: str) -> UUID:
        """A worker of the role, that begins now."""
        id = self.recorder.ids.new()
        started = WorkerStarted(worker=id, role=role, slot=0, host="h", pid=1, process_start_s=1.0)
        self.recorder.write(started, self.id, key=id)
        return id

    async def shown(self, prices: dict[str, float]) -> dict[str, float]:
        """The totals at this moment, by name and role."""
        log, engine, clock = MemoryLog(), open_database("sqlite:///:memory:"), self.recorder.clock
        projector = Projector(log, engine, clock=clock)
        await log.append(self.recorder.drafts)
        await projector.catch_up()
        metrics = Metrics(version="1")
        async with engine.connect() as connection:
            figures = await list_figures(connection, since_ns=0)
            held = await list_held(connection, since_ns=0)
        declared = {self.id: self.declared}
        found = AtScrape(figures=figures, buffers={}, held=held, declared=declared, now_ns=clock.now_ns())
        show_state(metrics, found, prices)
        await projector.close()
        await engine.dispose()
        totals = (metrics.accelerator_seconds, metrics.cost)
        return {
            f"{each.name} {each.labels['role']} {each.labels.get('accelerator', '')}".strip(): round(each.value, 6)
            for total in totals
            for family in total.collect()
            for each in family.samples
        }


async def test_workers_hold_accelerators_from_their_start_to_their_end() -> None:
    """A role's GPUs count once for each of its workers; one without a GPU counts as one of kind cpu."""
    workers = Workers()
    gone, killed, trainer = (workers.start(role) for role in ("explorer", "explorer", "trainer"))
    begun_ns = workers.recorder.clock.now_ns()
    workers.recorder.clock.advance(100.0)
    workers.recorder.write(WorkerStopped(worker=gone, role="explorer", slot=0), workers.id, key=gone)
    workers.recorder.clock.advance(50.0)
    workers.recorder.write(WorkerLost(worker=killed, role="explorer", slot=0, reason="r"), workers.id, key=killed)
    assert workers.recorder.clock.now_ns() - begun_ns < 151 * S_NS
    seen = await workers.shown({"gpu": 3.6})
    assert seen["rftd_accelerator_seconds_total explorer gpu"] == pytest.approx(2 * (100 + 150), abs=0.5)
    assert seen["rftd_cost_usd_total explorer"] == pytest.approx(0.5, abs=0.001)
    assert seen["rftd_accelerator_seconds_total trainer cpu"] == pytest.approx(150 - HEARD_S, abs=0.5)
    assert "rftd_cost_usd_total trainer" not in seen, "nobody gave a price for it"
    workers.recorder.clock.advance(10.0)
    later = await workers.shown({"gpu": 3.6, "cpu": 0.0})
    assert later["rftd_accelerator_seconds_total explorer gpu"] == seen["rftd_accelerator_seconds_total explorer gpu"]
    assert later["rftd_accelerator_seconds_total trainer cpu"] == pytest.approx(160 - HEARD_S, abs=0.5)
    assert later["rftd_cost_usd_total trainer"] == 0
    # The end of the experiment ends what nobody has seen end.
    workers.recorder.write(ExperimentCancelled(reason="enough"), workers.id, role="controller")
    workers.recorder.clock.advance(1000.0)
    ended = await workers.shown({})
    assert ended["rftd_accelerator_seconds_total trainer cpu"] == pytest.approx(160, abs=0.5)
    assert trainer


def test_a_total_that_is_read_never_falls() -> None:
    metrics = Metrics(version="1")
    total = ReadTotals("rftd_things_total", "Things", ["of"], registry=metrics.registry)
    for value, shown in ((5.0, 5.0), (4.5, 5.0), (6.0, 6.0)):
        total.update({("a",): value})
        (family,) = total.collect()
        assert [(each.name, each.value) for each in family.samples] == [("rftd_things_total", shown)]
    total.update({})
    assert not next(iter(total.collect())).samples


@pytest.mark.parametrize("wrong", ("gpu", "gpu=", "tpu=1", "gpu=-1", "gpu=inf", "gpu=nan", "gpu=two", "=2"))
def test_what_is_no_price_is_refused(wrong: str) -> None:
    assert Price().convert("gpu=2.50", None, None) == ("gpu", 2.5)
    assert Price().convert("cpu=0", None, None) == ("cpu", 0.0)
    with pytest.raises(click.BadParameter, match="is no price"):
        Price().convert(wrong, None, None)
