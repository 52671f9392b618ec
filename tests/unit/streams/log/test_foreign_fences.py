"""A fence, and what is written under it, counts from the owner that it names: of anybody else it is void, and found."""

from __future__ import annotations

from uuid import UUID

import pytest
from synthetic.log.busy_run import fold
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.streams.events.experiment import ExperimentFailed, Fence
from rftd.streams.log.effective import effective
from rftd.streams.log.fencing import FenceView
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.checker import verify

pytestmark = pytest.mark.anyio
OWNER = UUID(int=6)


@pytest.fixture
def run() -> SyntheticRun:
    run = SyntheticRun(Recorder(), faults=False)
    run.begin()
    run.warm_up()
    return run


async def findings(run: SyntheticRun) -> list[str]:
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    # The owners of the recorder's fences are no workers that joined, and each is another one: that is found, too.
    report = await verify(log)
    whats = [finding.what for finding in report.findings if finding.rule == "fences-come-first"]
    return [what for what in whats if "never was" not in what and "no such worker" not in what]


async def test_what_a_stranger_writes_under_the_present_epoch_is_void_and_found(run: SyntheticRun) -> None:
    assert await findings(run) == []
    run.recorder.write(ExperimentFailed(code="X", reason="no"), run.id, role="controller", source="stranger")
    assert not fold(run.id, run.recorder.records).spine.ended
    [what] = await findings(run)
    assert "is of epoch 1 of the controller, which 'stranger' never held" in what


@pytest.mark.parametrize(("role", "named"), [("trainer", f"trainer/{OWNER}"), ("planner", f"daemon/{OWNER}")])
async def test_a_strangers_fence_is_void_and_found(run: SyntheticRun, role: str, named: str) -> None:
    fence = Fence(role=role, epoch=2, previous=1, owner=OWNER)
    run.recorder.write(fence, run.id, role=role, epoch=2, partition=run.spine, source="stranger")
    fences = FenceView()
    events = [effective(record, fences) for record in run.recorder.records]
    assert events[-1] is None
    [what] = await findings(run)
    assert f"makes {named!r} the {role}, and 'stranger' wrote it" in what


async def test_a_rival_whose_fence_came_too_late_is_no_stranger(run: SyntheticRun) -> None:
    rival = Fence(role="controller", epoch=1, previous=0, owner=OWNER)
    run.recorder.write(rival, run.id, role="controller", epoch=1, partition=run.spine)
    failed = ExperimentFailed(code="X", reason="of a rival")
    run.recorder.write(failed, run.id, role="controller", epoch=1, source=f"daemon/{OWNER}")
    assert not fold(run.id, run.recorder.records).spine.ended
    assert await findings(run) == []
