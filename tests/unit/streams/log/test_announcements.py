"""What explorers load weights by is repeated by the next step: a changed or missing announcement is found."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.streams.events.weights import WeightsPublished
from rftd.streams.log.codec import decode, encode_value
from rftd.streams.log.envelope import Draft
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.checker import verify

pytestmark = pytest.mark.anyio
Change = Callable[[WeightsPublished], WeightsPublished | None]


async def findings(run: SyntheticRun, version: int, change: Change) -> list[str]:
    """The findings on the run with another announcement of a version; None: without it."""
    log = MemoryLog()
    for draft, record in zip(run.recorder.drafts, run.recorder.records, strict=True):
        event = decode(record).event
        value: bytes | None = draft.value
        if isinstance(event, WeightsPublished) and event.version == version:
            changed = change(event)
            value = encode_value(changed) if changed is not None else None
        if value is not None:
            await log.append([Draft(draft.partition, draft.id, draft.head, value)])
    report = await verify(log)
    return [finding.what for finding in report.findings if "announcement" in finding.what]


@pytest.fixture(scope="module")
def run() -> SyntheticRun:
    return SyntheticRun(Recorder(), faults=False).write()


async def test_what_nobody_changed_is_clean(run: SyntheticRun) -> None:
    assert await findings(run, 3, lambda event: event) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda event: msgspec.structs.replace(event, path="/elsewhere/v3"),
        lambda event: msgspec.structs.replace(event, method="memory"),
        lambda event: msgspec.structs.replace(event, host="elsewhere"),
        lambda event: None,
    ],
    ids=["path", "method", "host", "gone"],
)
async def test_a_changed_announcement_is_found_once(run: SyntheticRun, change: Change) -> None:
    [what] = await findings(run, 3, change)
    assert what.startswith("step 4 of generation 0 followed an announcement of weights")
