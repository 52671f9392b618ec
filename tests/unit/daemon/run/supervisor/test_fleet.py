"""Worker processes that hang before they join, or after they left."""

from __future__ import annotations

import asyncio
import platform
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.worlds.desk import Desk
from synthetic.worlds.fleet_bench import START_S, FleetBench, Process, Processes

from rftd.daemon.run.supervisor.worker_orders import read_by
from rftd.ops import limits
from rftd.ops.words import Words
from rftd.streams.events.experiment import ExperimentFailed
from rftd.streams.events.task import EvalLeased
from rftd.streams.events.worker import Heartbeat, WorkerStopped
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import LoraSpec, TasksetSpec, TrainerSpec
from rftd.workers.control.hold import REFUSED, WORKER_FAILS, Obstacle
from rftd.workers.hosts.executor import UNFIT_PLACE, UNKNOWN_EXIT

pytestmark = pytest.mark.anyio


class Remote(Processes):
    """An executor whose workers have another environment than the daemon, although on its machine."""

    def is_remote(self, role: str) -> bool:
        return True


async def test_a_process_that_does_not_join_is_killed_and_started_anew() -> None:
    bench = FleetBench()
    await bench.after(0.0)
    [trainer], [explorer] = bench.processes.of("trainer"), bench.processes.of("explorer")
    await bench.after(START_S / 2)
    bench.join(trainer)
    await bench.after(START_S / 2)
    assert not explorer.killed, "in time still"
    await bench.after(1.0)
    assert explorer.killed
    assert not trainer.killed
    for _ in range(3):
        await bench.after(1.0)
    assert len(bench.processes.of("explorer")) == 2
    assert len(bench.processes.of("trainer")) == 1


async def test_one_that_never_joins_pauses_the_experiment_and_is_tried_anew() -> None:
    bench = FleetBench()
    while (obstacle := bench.fleet.stalled()) is None:
        await bench.after(START_S / 2 + 1.0)
    assert obstacle.cause == WORKER_FAILS
    assert f"ended {limits.RESTARTS_IN_A_ROW + 1} times in a row" in obstacle.reason
    assert f"did not join within {START_S:g} s, so it was killed" in obstacle.reason
    tried = len(bench.processes.started)
    await bench.after(limits.STALLED_BACKOFF_S[0] / 2)
    assert len(bench.processes.started) == tried
    assert bench.fleet.stalled() is not None
    bench.clock.advance(limits.STALLED_BACKOFF_S[0])
    assert bench.fleet.stalled() is None, "so that it goes on"
    await bench.after(0.0)
    assert len(bench.processes.started) > tried


async def test_a_disk_that_was_away_for_forty_seconds_ends_nothing() -> None:
    """Nine failures within half a minute ended a run for good."""
    bench = FleetBench()
    began_s, failures = bench.clock.monotonic_s(), 0
    while bench.clock.monotonic_s() < began_s + 40.0:
        await bench.after(0.1)
        for process in bench.processes.started:
            failures += not process.killed
            process.kill()
    assert failures > 2 * limits.RESTARTS_IN_A_ROW
    while any(bench.processes.of(role)[-1].killed for role in ("trainer", "explorer")):
        await bench.after(0.1)
    for role in ("trainer", "explorer"):
        bench.join(bench.processes.of(role)[-1])
    await bench.after(10 * START_S)
    assert not any(bench.processes.of(role)[-1].killed for role in ("trainer", "explorer"))
    assert bench.fleet.stalled() is None


async def test_one_that_left_and_does_not_end_is_killed() -> None:
    bench = FleetBench()
    await bench.after(0.0)
    [explorer] = bench.processes.of("explorer")
    for process in bench.processes.started:
        bench.join(process)
    await bench.after(10 * START_S)
    assert not explorer.killed, "a member may take as long as it likes"
    gone = next(each for each in bench.desk.state.roster.live.values() if each.role == "explorer")
    bench.desk.put(WorkerStopped(worker=gone.worker, role="explorer", slot=0, code="X", reason="y"), key=gone.worker)
    await bench.after(limits.DRAIN_TIMEOUT_S - 1.0)
    assert not explorer.killed
    await bench.after(2.0)
    assert explorer.killed


async def test_what_the_one_before_left_is_waited_for_as_long_as_it_takes_and_named() -> None:
    bench = FleetBench()
    bench.processes.in_the_way = "leftover processes of the previous worker to end: 77 (engine)"
    await bench.after(0.0)
    [explorer] = bench.processes.of("explorer")
    for _ in range(20):
        await bench.after(START_S)
    assert not explorer.killed
    assert len(bench.processes.of("explorer")) == 1
    [place] = [each for each in bench.fleet.processes() if each.role == "explorer"]
    assert place.pid is None
    assert place.waits == explorer.waits
    explorer.pid, explorer.waits = 4711, None
    await bench.after(START_S / 2)
    await bench.after(START_S - 1.0)
    assert not explorer.killed, "its time to join began when it was started"
    await bench.after(2.0)
    assert explorer.killed


async def test_a_start_that_hangs_is_given_up_like_one_that_does_not_join() -> None:
    bench = FleetBench()
    bench.processes.in_the_way = ""
    await bench.after(0.0)
    [explorer] = bench.processes.of("explorer")
    await bench.after(START_S + 1.0)
    assert explorer.killed
    await bench.after(0.1)
    await bench.after(limits.RESTART_BACKOFF_S[-1])
    assert len(bench.processes.of("explorer")) == 2


async def test_a_drain_ends_although_a_process_does_not_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    bench = FleetBench()
    await bench.after(0.0)
    for process in bench.processes.started:
        process.deaf = True
    leftover = bench.processes.leftover = Process(77, bench.processes.started[0].order)
    leftover.waits = Words("leftovers", "77 (engine)")
    began_s = bench.clock.monotonic_s()
    draining = asyncio.ensure_future(bench.fleet.drain())
    while not draining.done():
        await asyncio.sleep(0)
        bench.clock.advance(0.5)
    await draining
    assert all(process.killed for process in bench.processes.started)
    assert bench.clock.monotonic_s() - began_s < 60.0
    told = capsys.readouterr()
    assert "worker.left_behind" in told.out + told.err
    assert "77 (engine)" in told.out + told.err


@pytest.mark.parametrize("identity", [{"pid_namespace": 1}, {"boot_id": "another"}])
async def test_a_worker_of_another_pid_namespace_or_boot_is_judged_by_its_heartbeats_alone(
    identity: dict[str, Any],
) -> None:
    """It was declared lost at once: under the same host name its pid named no process, or a stranger."""
    bench = FleetBench()
    bench.liveness.lost_after_s = 15.0
    await bench.after(0.0)
    stranger = Process(1, bench.processes.of("explorer")[0].order)
    joined = bench.join(stranger, worker=UUID(int=1), **identity)
    assert await bench.after(1.0) == []
    for _ in range(30):
        bench.liveness.note(Heartbeat(worker=joined.worker, role="explorer", slot=0, state="busy"))
        assert await bench.after(1.0) == []
    lost = [each for _ in range(20) for each in await bench.after(1.0)]
    assert {each.worker for each in lost} == {joined.worker}
    assert "no heartbeat" in lost[0].reason


async def test_silence_while_opening_the_engine_does_not_count_after_joining() -> None:
    """An import that held up its loop for 16 s had it killed at the moment at which it joined."""
    bench = FleetBench()
    bench.liveness.lost_after_s = 15.0
    await bench.after(0.0)
    [explorer] = bench.processes.of("explorer")
    bench.liveness.note(_beat(explorer.order.worker, "open_engine"))
    for _ in range(18):
        await bench.after(1.0)
    assert not explorer.killed
    bench.join(explorer)
    for _ in range(14):
        await bench.after(1.0)
    assert not explorer.killed, "its deadline began when it joined"
    for _ in range(3):
        await bench.after(1.0)
    assert explorer.killed
    assert bench.why_of("explorer") == (
        "no heartbeat for 15 s, so it was killed; its last one said that it opens its engine; "
        "see the end of its log, and whether its machine is overloaded"
    )


async def test_a_heartbeat_that_was_folded_in_this_turn_counts_in_it() -> None:
    bench = FleetBench()
    bench.liveness.lost_after_s = 15.0
    await bench.after(0.0)
    [explorer] = bench.processes.of("explorer")
    bench.join(explorer)
    for _ in range(15):
        await bench.after(1.0)
    bench.liveness.note(_beat(explorer.order.worker, "load_weights"))
    await bench.after(1.5)
    assert not explorer.killed


@pytest.mark.parametrize("evaluates", [False, True])
async def test_a_silent_worker_with_tasks_may_have_a_workflow_that_blocks_it(evaluates: bool) -> None:
    """The reason blamed a workflow also where none had run."""
    bench = FleetBench()
    bench.liveness.lost_after_s = 15.0
    await bench.after(0.0)
    [explorer] = bench.processes.of("explorer")
    bench.join(explorer)
    if evaluates:
        bench.desk.put(
            EvalLeased(
                lease=UUID(int=1),
                eval=UUID(int=2),
                version=0,
                generation=0,
                stage=0,
                taskset=0,
                row_start=0,
                row_end=4,
                worker=explorer.order.worker,
                slot=0,
                attempt=0,
                deadline_s=20.0,
            )
        )
    else:
        bench.desk.lease(0, explorer.order.worker)
    for _ in range(17):
        await bench.after(1.0)
    assert bench.why_of("explorer") == (
        "no heartbeat for 15 s, so it was killed; it had tasks: a workflow or a reward that blocks its process and "
        "never yields keeps them back"
    )


async def test_one_that_is_killed_before_it_joins_is_told_with_what_it_did() -> None:
    bench = FleetBench()
    await bench.after(0.0)
    [explorer] = bench.processes.of("explorer")
    bench.liveness.note(_beat(explorer.order.worker, "open_engine"))
    await bench.after(START_S + 1.0)
    assert bench.why_of("explorer") == (
        f"its process did not join within {START_S:g} s, so it was killed; its last heartbeat said that it opens its "
        "engine"
    )


def _beat(worker: UUID, state: str) -> Heartbeat:
    return Heartbeat(worker=worker, role="explorer", slot=0, state=state)


async def test_a_worker_of_here_is_lost_when_its_process_ended() -> None:
    bench = FleetBench()
    await bench.after(0.0)
    there, gone = (
        bench.join(Process(pid, bench.processes.of("explorer")[0].order), worker=UUID(int=pid)) for pid in (11, 12)
    )
    bench.processes.living.add(11)
    lost = await bench.after(0.1)
    assert [each.worker for each in lost] == [gone.worker]
    assert there.worker in bench.desk.state.roster.live


async def test_an_ordered_worker_is_known_by_its_id_wherever_its_process_runs() -> None:
    """It was told by host and pid, so one that a cluster had placed elsewhere was killed as one that never joined."""
    bench = FleetBench()
    await bench.after(0.0)
    trainer, explorer = bench.processes.started
    bench.join(trainer)
    first = bench.join(explorer, host="elsewhere", pid=1)
    for _ in range(3):
        assert await bench.after(10 * START_S) == []
    assert not explorer.killed
    assert first.worker == explorer.order.worker
    bench.desk.put(
        WorkerStopped(worker=first.worker, role="explorer", slot=0, code="X", reason="why"), key=first.worker
    )
    explorer.killed = True
    await bench.after(0.1)
    [place] = [each for each in bench.fleet.processes() if each.role == "explorer"]
    assert place.last_why == "X: why", "its own reason, though its exit code says a signal"
    await bench.after(10.0)
    assert bench.processes.of("explorer")[-1].order.worker != first.worker, "each start has an id of its own"


async def test_a_node_that_lacks_what_a_worker_needs_pauses_the_experiment_with_the_reason() -> None:
    bench = FleetBench()
    await bench.after(0.0)
    [trainer] = bench.processes.of("trainer")
    trainer.reason = "node 10.0.0.2 has no /models/m; fix: give every node the folders"
    trainer.code = UNFIT_PLACE
    await bench.after(1.0)
    trouble = bench.fleet.trouble
    assert isinstance(trouble, Obstacle)
    assert (trouble.cause, trouble.fix) == (REFUSED, "give every node the folders")
    assert trouble.reason == "its trainer refuses: RFTD-DAT-001: node 10.0.0.2 has no /models/m"


@pytest.mark.parametrize(
    ("host", "remote", "kind"),
    [
        (platform.node(), False, ExperimentFailed),
        ("10.0.0.2", False, Obstacle),
        (platform.node(), True, Obstacle),
    ],
)
async def test_a_part_that_another_environment_lacks_may_be_on_the_next_node(
    host: str, remote: bool, kind: type[object]
) -> None:
    """Here the daemon has looked for it: what a worker still refuses will never suit it."""
    bench = FleetBench(Remote() if remote else None)
    await bench.after(0.0)
    [trainer] = bench.processes.of("trainer")
    started = bench.join(trainer, host=host)
    stopped = WorkerStopped(
        worker=started.worker, role="trainer", slot=-1, code="RFTD-CFG-001", reason="unknown policy loss 'theirs'"
    )
    bench.desk.put(stopped, key=started.worker)
    trainer.code = 2
    await bench.after(1.0)
    assert isinstance(bench.fleet.trouble, kind)
    assert "unknown policy loss" in bench.fleet.trouble.reason


def test_each_role_needs_the_models_and_datasets_that_it_reads() -> None:
    taskset = TasksetSpec(name="t", path="/d/tasks")
    spec = Desk().state.spine.spec
    assert spec is not None
    lora = LoraSpec(rank=1, alpha=1.0, path="/m/adapter")
    stage = msgspec.structs.replace(
        spec.stages[0],
        model=msgspec.structs.replace(spec.stages[0].model, path="/m/base", lora=lora),
        trainer=TrainerSpec(critic_path="/m/critic", teacher_path="/m/teacher"),
        taskset=taskset,
        dataset=msgspec.structs.replace(taskset, path="/d/rows"),
        evals=(msgspec.structs.replace(taskset, path="/d/held"), msgspec.structs.replace(taskset, path="hub/name")),
        auxiliary=(AuxiliarySpec(name="judge", path="/m/judge"), AuxiliarySpec(name="far")),
    )
    both = {"/m/base", "/m/adapter"}
    assert set(read_by("trainer", [stage])) == both | {"/m/critic", "/m/teacher", "/d/rows"}
    assert set(read_by("explorer", [stage])) == both | {"/d/tasks", "/d/held", "/m/judge"}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (-1, "its process was killed by signal 1"),
        (-9, "its process was killed by signal 9"),
        (3, "its process ended with exit status 3"),
        (UNKNOWN_EXIT, "its process ended"),
    ],
)
async def test_reason_of_an_ended_process_names_signal_or_exit_status(code: int, why: str) -> None:
    bench = FleetBench()
    await bench.after(0.0)
    [explorer] = bench.processes.of("explorer")
    explorer.code = code
    await bench.after(0.0)
    assert bench.why_of("explorer") == why
