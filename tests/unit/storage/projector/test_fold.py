"""The pure half: duplicates, fences, first completions, routes."""

from __future__ import annotations

from uuid import UUID

from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.storage.projector.fold import FenceState, Folded, TableFold
from rftd.storage.projector.projections import PROJECTIONS, batches, experiences, experiments, progress
from rftd.storage.projector.standing_plans import StandingPlans
from rftd.storage.projector.upserts import Upsert, Values
from rftd.streams.events import batch, experiment
from rftd.streams.events.catalogue import definitions
from rftd.streams.log import topics
from rftd.streams.log.effective import ruling
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import Partition, partition_of


def rows(folded: Folded, upsert: Upsert) -> list[dict[str, object]]:
    values: list[Values] = folded.rows.get(upsert, [])
    return [dict(zip(upsert.columns, row, strict=True)) for row in values]


def test_records_that_were_applied_change_nothing(run: SyntheticRun) -> None:
    fold = TableFold({})
    first = fold.take([record for record in run.recorder.records for _ in range(2)])
    again = fold.take(run.recorder.records)
    assert first.rows == TableFold({}).take(run.recorder.records).rows
    assert (again.rows, again.after, again.applied.total()) == ({}, {}, 0)


def test_a_fold_taken_up_from_its_fences_goes_on_the_same(run: SyntheticRun) -> None:
    whole, records = TableFold({}), run.recorder.records
    cut = len(records) // 3
    first, second = whole.take(records[:cut]), whole.take(records[cut:])
    states = [fold_state(row) for row in rows(first, progress.FENCED)]
    plans = StandingPlans()
    fences = FenceView()
    for record in records[:cut]:
        decoded, _ = ruling(record, fences)
        plans.counts(decoded)
    resumed = TableFold(first.after, states, planned=plans.planned).take(records[cut:])
    assert (resumed.rows, resumed.void) == (second.rows, second.void)


def fold_state(row: dict[str, object]) -> FenceState:
    return FenceState(
        Partition(str(row["stream"]), int(str(row["partition"]))),
        UUID(bytes=bytes(row["experiment"])),  # type: ignore[call-overload]
        str(row["role"]),
        int(str(row["epoch"])),
        UUID(bytes=bytes(row["owner"])),  # type: ignore[call-overload]
    )


def test_a_fenced_record_has_no_effect() -> None:
    recorder = Recorder()
    id = recorder.ids.new()
    spine = partition_of(topics.EXPERIMENTS, id)

    def plan(epoch: int, step: int = 1) -> UUID:
        batch_id = recorder.ids.new()
        planned = batch.BatchPlanned(batch=batch_id, step=step, stage=0, observed=(), decided_at_ns=0)
        recorder.write(planned, id, role="planner", epoch=epoch)
        return batch_id

    plan(0)
    recorder.fence("planner", id, spine)
    present = plan(1)
    plan(0)
    rival = experiment.Fence(role="planner", epoch=9, previous=0, owner=recorder.ids.new())
    recorder.write(rival, id, role="planner", epoch=9, partition=spine)
    also_present = plan(1, step=2)
    recorder.fence("planner", id, spine)
    plan(1)
    folded = TableFold({}).take(recorder.records)
    planned = [row["id"] for row in rows(folded, batches.PLANNED)]
    assert planned == [present.bytes, also_present.bytes]
    assert [row["epoch"] for row in rows(folded, progress.FENCED)] == [1, 2]
    assert folded.void == 4


def test_a_spine_record_in_a_foreign_partition_is_a_dead_letter() -> None:
    recorder = Recorder()
    id = recorder.ids.new()
    home = partition_of(topics.EXPERIMENTS, id)
    astray = Partition(topics.EXPERIMENTS, (home.number + 1) % 4)
    recorder.write(experiment.ExperimentCompleted(), id, partition=astray)
    folded = TableFold({}).take(recorder.records)
    assert (len(folded.letters), rows(folded, experiments.STATE)) == (1, [])


def test_text_and_numbers_are_what_every_database_keeps(run: SyntheticRun) -> None:
    folded = TableFold({}).take(run.recorder.records)
    assert [row["failed_reason"] for row in rows(folded, experiences.FAILED)] == ["too\ufffdlate"]


def test_every_event_type_of_truth_is_projected_or_known_not_to_be() -> None:
    handled = {kind for projection in PROJECTIONS for kind in projection.handlers}
    left_out = {d.name for d in definitions() if d.kind not in handled}
    # A retried task shows in its new group, a sync point in the leases of its window, offered tasks in theirs; the rest
    # is read from the log.
    sync_points = {"weights.requested", "weights.answered"}
    known = {
        "worker.heartbeat",
        "task.retried",
        "tasks.offered",
        "tasks.added",
        "tasks.drawn",
        "tasks.ended",
        "group.leased",
        "group.processed",
        "record.retried",
        "record.dropped",
    }
    known |= {"sweep.submitted", "sweep.refused", "sweep.halved", "sweep.cancelled"}
    known |= {"experiment.loss_accepted", "experiment.payloads_dropped", "experience.given_up", "experiment.imported"}
    known |= {"experiment.seen"}
    assert left_out == known | sync_points
