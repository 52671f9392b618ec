"""A whole run on fake engines, traced to a real receiver: one trace from lease to experience, steps with links."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from synthetic.servers.otlp_receiver import OtlpReceiver, otlp_receiver

from rftd.ops.logs import logger
from rftd.ops.tracing.trace_options import TraceOptions, span_exporter
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experience import EvalScored, ExperienceProduced, RolloutFailed
from rftd.streams.events.step import StepCompleted
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.weights import WeightsActivated, WeightsPublished
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.topics import EVERY_PARTITION
from rftd.streams.spec.spec import RolloutSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.datasets.task import Task
from rftd.workers.generation.model import Model
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.simple import SimpleWorkflow

SECRET = "this was the prompt:"


class OftenWrong(SimpleWorkflow):
    """Fails for some rows, and quotes them."""

    def prompt(self, task: Task, model: Model, reward: Scorer) -> list[int]:
        if task.prompt.startswith("3"):
            raise ValueError(f"{SECRET} {task.prompt}")
        return super().prompt(task, model, reward)

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        self.prompt(task, model, reward)
        return await super().run(task, model, reward)


async def traced_run(
    folder: Path, fake_world: Any, clock: Any, ids: Any, *, ratio: float, **changes: Any
) -> tuple[OtlpReceiver, list[Decoded]]:
    """What a receiver got of a run, and all records of it."""
    spec = fake_world.spec(folder, **changes)
    log = await SqliteLog.open(folder / "log")
    with otlp_receiver() as receiver:
        exporter = span_exporter(TraceOptions(url=receiver.url + "/v1/traces"), "run", logger())
        tracer = Tracer(exporter, clock=clock, random=Random(7), ratio=ratio)
        state = await fake_world.completed(log, spec, clock, ids, tracer)
        exporter.close(60.0)
        assert exporter.dropped_total == 0
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert (await fake_world.verified(log)).clean
    records = [decode(record) for partition in EVERY_PARTITION for record in await log.read(partition, 0)]
    await log.close()
    return receiver, records


def traceparents(records: list[Decoded], kind: type[Any]) -> list[str | None]:
    return [record.head.traceparent for record in records if isinstance(record.event, kind)]


@pytest.mark.anyio
async def test_one_trace_goes_from_the_lease_to_the_experience(tmp_path: Path, clock, ids, fake_world) -> None:
    receiver, records = await traced_run(tmp_path, fake_world, clock, ids, ratio=1.0)
    spans = {span.id: span for span in receiver.spans}
    assert len(spans) == len(receiver.spans), "each id once"
    made = [record for record in records if isinstance(record.event, ExperienceProduced)]
    assert made
    ended = {span.trace for span in receiver.named("invoke_workflow")}
    for record in made:
        assert isinstance(record.event, ExperienceProduced)
        _, trace, id, flags = (record.head.traceparent or "").split("-")
        assert (flags, trace in ended) == ("01", True)
        create = spans[id]
        rollout = spans[create.parent]
        lease = spans[rollout.parent]
        dispatch = spans[lease.parent]
        names = [each.name for each in (dispatch, lease, rollout, create)]
        assert names == [
            f"send {topics.TASKS}",
            f"process {topics.TASKS}",
            "invoke_workflow simple_workflow",
            f"create {topics.EXPERIENCES}",
        ]
        assert {each.trace for each in (dispatch, lease, rollout, create)} == {trace}
        assert dispatch.parent == ""
        assert rollout.attributes["rftd.reward"] == pytest.approx(record.event.reward)
        assert create.attributes["rftd.experience.id"] == str(record.event.experience)
        below = [each.name for each in receiver.spans if each.parent == rollout.id]
        assert sorted(below) == ["chat fake", f"create {topics.EXPERIENCES}", "reward exact_match_reward"]
    leases = {record.event.lease for record in records if isinstance(record.event, TaskLeased)}
    assert {span.attributes["rftd.lease.id"] for span in receiver.named(f"send {topics.TASKS}")} >= set(
        map(str, leases)
    )


@pytest.mark.anyio
async def test_steps_link_to_what_they_consumed_and_lead_to_loaded_weights(
    tmp_path: Path, clock, ids, fake_world
) -> None:
    receiver, records = await traced_run(tmp_path, fake_world, clock, ids, ratio=1.0)
    spans = {span.id: span for span in receiver.spans}
    created = {(span.trace, span.id) for span in receiver.named(f"create {topics.EXPERIENCES}")}
    steps = {span.attributes["rftd.step"]: span for span in receiver.named("train_step")}
    assert sorted(steps) == list(range(1, 9))
    for step, span in steps.items():
        assert len(span.links) == (16 if step > 3 else 0), "of rows there is no trace"
        assert span.links <= created
        assert {each.name for each in receiver.spans if each.parent == span.id} >= {"assemble_batch", "execute_step"}
    # A step's trace begins where its batch was planned, in the daemon.
    planned = traceparents(records, BatchPlanned)
    for span in steps.values():
        plan = spans[span.parent]
        assert (plan.name, plan.parent, plan.trace) == ("plan_batch", "", span.trace)
        assert f"00-{plan.trace}-{plan.id}-01" in planned
    for text in (traceparents(records, StepCompleted), traceparents(records, CheckpointCommitted)):
        assert text and all(
            each is not None and each.split("-")[1] in {s.trace for s in steps.values()} for each in text
        )
    for each in traceparents(records, WeightsPublished):
        assert each is not None and spans[each.split("-")[2]].name == "publish_weights"
    for each in traceparents(records, WeightsActivated):
        assert each is not None
        load = spans[each.split("-")[2]]
        assert (load.name, spans[load.parent].name) == ("load_weights", "publish_weights")
        assert load.attributes["rftd.weight.version"] == spans[load.parent].attributes["rftd.weight.version"]
    for each in traceparents(records, EvalScored):
        assert each is not None and spans[each.split("-")[2]].name == f"process {topics.TASKS}"


@pytest.mark.anyio
async def test_unsampled_only_steps_weights_evaluations_and_errors_are_traced(
    tmp_path: Path, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKFLOWS._table, "simple_workflow", f"{__name__}:OftenWrong")
    rollout = RolloutSpec(engine="fake", concurrency=8, max_timeout_s=20.0, max_retry_times=0)
    receiver, records = await traced_run(tmp_path, fake_world, clock, ids, ratio=0.0, rollout=rollout)
    assert set(traceparents(records, ExperienceProduced)) == {None}
    failed = [record.event for record in records if isinstance(record.event, RolloutFailed)]
    assert failed
    spans = receiver.named("invoke_workflow")
    assert len(spans) == len(failed)
    assert {(span.failed, span.attributes["error.type"]) for span in spans} == {(True, failed[0].code)}
    sampled = {text.split("-")[3] for text in traceparents(records, TaskLeased) if text}
    assert sampled == {"00"}
    kinds = {span.name.split()[0] for span in receiver.spans}
    assert kinds >= {
        "plan_batch",
        "train_step",
        "publish_weights",
        "load_weights",
        "save_checkpoint",
        "process",
        "send",
    }
    assert not kinds & {"chat", "reward", "create"}
    assert not any(SECRET.encode() in body for body in receiver.bodies)


@pytest.mark.anyio
async def test_without_a_tracer_the_log_has_no_trace_and_lines_have_none(
    tmp_path: Path, clock, ids, fake_world
) -> None:
    log = await SqliteLog.open(tmp_path / "log")
    with capture_logs() as lines:
        await fake_world.completed(log, fake_world.spec(tmp_path), clock, ids)
    heads = [decode(record).head for partition in EVERY_PARTITION for record in await log.read(partition, 0)]
    await log.close()
    assert {head.traceparent for head in heads} == {None}
    assert not any("trace_id" in line for line in lines)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(heads[0]))[-1] is None, "as before"
