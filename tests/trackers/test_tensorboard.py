"""TensorBoard's own reader finds in our event files what `rftd steps` shows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from synthetic.tracking.tracked import Shown, as_shown, expected, follow, written

from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
pytestmark = pytest.mark.anyio


async def test_tensorboard_reads_every_figure(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind="tensorboard"))
    shown: list[Shown] = []
    for role in ("explorer", "trainer"):
        folder = tmp_path / "monitor" / "tensorboard" / role
        read = accumulators.EventAccumulator(str(folder), {"scalars": 0, "tensors": 0}).Reload()
        for tag in read.Tags()["scalars"]:
            shown += [as_shown("tensorboard", role, entry.step, tag, entry.value) for entry in read.Scalars(tag)]
        assert "config/text_summary" in read.Tags()["tensors"] or "config" in read.Tags()["tensors"]
        text = read.Tensors("config" if "config" in read.Tags()["tensors"] else "config/text_summary")[0]
        assert b'"name": "small"' in text.tensor_proto.string_val[0]
    assert sorted(shown, key=lambda figure: (figure.run, figure.step, figure.name)) == await expected(
        "tensorboard", run, log
    )
    assert any(math.isnan(float(figure.value)) for figure in shown)
