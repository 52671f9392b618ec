"""An answer counts if the worker that holds its lease wrote it; of anybody else it counts for nothing, and is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
from synthetic.log.busy_run import fold
from synthetic.log.eval_lease import eval_lease
from synthetic.log.recorder import Recorder
from synthetic.log.repeating_log import RepeatingLog
from synthetic.log.synthetic_run import SyntheticRun, group_of

from rftd.ops.ids import derive
from rftd.streams.events import experience, task
from rftd.streams.log.arrays import Array
from rftd.streams.log.chain import Heads
from rftd.streams.log.codec import decode, encode_value
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import TASKS, Partition
from rftd.streams.log.writers import source_of
from rftd.streams.memory import MemoryLog
from rftd.streams.verify import answers
from rftd.streams.verify.checker import verify
from rftd.streams.verify.report import BrokenPromise

RULE = "answers-have-a-lease"
STRANGER = "explorer/00000000-0000-0000-0000-00000000beef"


class OpenRun(SyntheticRun):
    """A run with one group under way, which is looked at before its end."""

    def finish(self) -> None:
        """One more group is leased, and nothing more happens."""
        self.open = group_of(self.id, self.groups)
        self.lease_open(attempt=1)

    def lease_open(self, *, attempt: int) -> None:
        """The open group is leased, to another worker with each attempt."""
        slot = attempt - 1
        leased = task.TaskLeased(
            lease=self.recorder.ids.new(),
            slot=slot,
            worker=self.workers[slot],
            group=self.open,
            sequence=self.groups,
            stage=1,
            row=self.groups,
            epoch=0,
            rollouts=(0, 1, 2, 3),
            repeat_times=4,
            attempt=attempt,
            deadline_s=60.0,
            min_version=self.version,
        )
        self.lease = leased.lease
        self.recorder.write(leased, self.id, partition=Partition(TASKS, slot))


@pytest.fixture
def run() -> OpenRun:
    return OpenRun(Recorder(), steps=1, faults=False).write()  # type: ignore[return-value]


async def findings(run: SyntheticRun) -> list[BrokenPromise]:
    return await findings_of(MemoryLog(), run.recorder.drafts)


async def findings_of(log: MemoryLog, drafts: Sequence[Draft]) -> list[BrokenPromise]:
    for draft in drafts:
        await log.append([draft])
    return [finding for finding in (await verify(log)).findings if finding.rule == RULE]


class GrowingLog(MemoryLog):
    """A log that somebody writes to while it is checked: some drafts come after the heads were asked for so often."""

    def __init__(self, drafts: Sequence[Draft], after: int) -> None:
        super().__init__()
        self._drafts = drafts
        self._until = after

    async def heads(self) -> Heads:
        heads = await super().heads()
        self._until -= 1
        if self._until == 0:
            for draft in self._drafts:
                await self.append([draft])
        return heads


@pytest.mark.anyio
@pytest.mark.parametrize("after", range(1, 6))
async def test_a_lease_and_its_answer_may_come_while_the_log_is_checked(run: OpenRun, after: int) -> None:
    run.produce(run.open, 0, run.lease)
    *before, lease, answer = run.recorder.drafts
    assert await findings_of(GrowingLog([lease, answer], after), before) == []


@pytest.mark.anyio
async def test_what_nobody_forged_is_clean(run: OpenRun) -> None:
    run.produce(run.open, 0, run.lease)
    assert await findings(run) == []
    assert list(fold(run.id, run.recorder.records).groups.open[run.open].members) == [0]


@pytest.mark.anyio
@pytest.mark.parametrize("lease", [lambda run: run.lease, lambda run: derive(run.lease, "none")], ids=["his", "none"])
async def test_an_experience_of_a_stranger_counts_for_nothing_and_is_found(
    run: OpenRun, lease: Callable[[OpenRun], object]
) -> None:
    for rollout in range(4):
        run.produce(run.open, rollout, lease(run), source=STRANGER)  # type: ignore[arg-type]
    run.produce(run.open, 1, run.lease)
    groups = fold(run.id, run.recorder.records).groups
    assert list(groups.open[run.open].members) == [1], "the holder's own counts, though it came last"
    assert groups.open[run.open].missing == (0, 2, 3)
    assert groups.load[run.workers[0]] == 3
    said = await findings(run)
    assert len(said) == 4
    assert said[0].what.startswith(f"experience.produced of '{STRANGER}' at rftd.experiences/")


@pytest.mark.anyio
async def test_a_failure_of_a_stranger_ends_no_rollout(run: OpenRun) -> None:
    failed = experience.RolloutFailed(group=run.open, rollout=0, stage=1, lease=run.lease, code="X", reason="no")
    run.recorder.write(failed, run.id, key=run.open, source=STRANGER)
    groups = fold(run.id, run.recorder.records).groups
    assert groups.open[run.open].failed == {}
    assert groups.inflight_rollouts == 4
    assert len(await findings(run)) == 1


@pytest.mark.anyio
async def test_a_score_of_nobody_is_no_score(run: OpenRun) -> None:
    id = derive(run.id, "eval", "asked")
    leased = eval_lease(id, run.workers[0], run.version, row_end=2)
    run.recorder.write(leased, run.id, partition=Partition(TASKS, 0))
    forged = experience.EvalScored(
        eval=id,
        lease=leased.lease,
        stage=1,
        taskset=0,
        row_start=0,
        version=run.version,
        generation=0,
        rewards=Array.of([1.0, 1.0], "f4"),
        tokens=Array.of([1, 1], "u4"),
    )
    run.recorder.write(forged, run.id, key=id, source=STRANGER)
    evaluation = fold(run.id, run.recorder.records).evals.open[id]
    assert evaluation.scores == {}
    assert list(evaluation.leases) == [leased.lease]
    [said] = await findings(run)
    assert said.what.startswith("eval.scored of ")


@pytest.mark.anyio
async def test_a_worker_that_never_joined_holds_no_lease_that_is_in_order(run: OpenRun) -> None:
    nobody = run.recorder.ids.new()
    leased = task.TaskLeased(
        lease=run.recorder.ids.new(),
        slot=1,
        worker=nobody,
        group=run.open,
        sequence=run.groups,
        stage=1,
        row=run.groups,
        epoch=0,
        rollouts=(0,),
        repeat_times=4,
        attempt=2,
        deadline_s=60.0,
        min_version=run.version,
    )
    run.recorder.write(leased, run.id, partition=Partition(TASKS, 1))
    [said] = await findings(run)
    assert said.what == f"worker {nobody} got leases and never joined"


@pytest.mark.anyio
async def test_a_rollout_that_its_holder_answers_again_with_other_tokens_is_found(run: OpenRun) -> None:
    run.produce(run.open, 0, run.lease)
    counted = fold(run.id, run.recorder.records).groups.open[run.open].members[0]
    holder = source_of("explorer", run.workers[0])
    forged = run.produce(run.open, 0, run.lease, source=holder)
    assert forged.experience == counted.experience
    assert fold(run.id, run.recorder.records).groups.open[run.open].members[0] == counted
    [said] = await findings(run)
    assert said.what.startswith(f"experience.produced of '{holder}' at rftd.experiences/{forged.partition}@")
    assert said.what.endswith(f"differently from rftd.experiences/{counted.partition}@{counted.offset}")


@pytest.mark.anyio
async def test_second_answers_far_apart_are_found(run: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_BATCH_ROWS", 2)
    run.produce(run.open, 0, run.lease)
    for rollout in (1, 2, 3):
        run.produce(run.open, rollout, run.lease)
    run.produce(run.open, 0, run.lease, source=source_of("explorer", run.workers[0]))
    [finding] = await findings(run)
    assert finding.what.startswith("experience.produced of ")


@pytest.mark.anyio
async def test_a_rollout_of_two_leases_has_two_answers_of_one_id(run: OpenRun) -> None:
    run.produce(run.open, 0, run.lease)
    run.lease_open(attempt=2)
    run.produce(run.open, 0, run.lease)
    assert await findings(run) == []


@pytest.mark.anyio
@pytest.mark.parametrize("forged", [False, True], ids=["repeated", "forged"])
async def test_a_record_that_comes_again_on_kafka_is_the_same_or_found(run: OpenRun, forged: bool) -> None:
    run.produce(run.open, 0, run.lease)
    answer = run.recorder.drafts[-1]
    if forged:
        other = msgspec.structs.replace(decode(run.recorder.records[-1]).event, reward=1000.0)
        answer = msgspec.structs.replace(answer, value=encode_value(other))
    log = RepeatingLog()
    await log.append([*run.recorder.drafts, answer])
    report = await verify(log, chained=False)
    assert report.repeated == 1
    said = [finding.what for finding in report.findings if finding.rule == "unique"]
    assert len(said) == forged
    assert all(what.endswith("with other content: another program took its id") for what in said)
