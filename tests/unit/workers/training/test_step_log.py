"""The lines of a trainer's and an explorer's log: figures in few digits, JSON whatever comes, few of many failures."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from rftd.ops.clock import ManualClock
from rftd.ops.errors import RolloutError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import configure, logger
from rftd.streams.events.experience import RolloutFailed
from rftd.streams.events.step import StepCompleted
from rftd.workers.rollout.rollout_log import REASON_CHARS, RolloutLog
from rftd.workers.training.step_log import Publication, StepLog

IDS = SystemIds(ManualClock())


@pytest.fixture(autouse=True)
def settings_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def done(step: int, metrics: dict[str, float], **changes: Any) -> StepCompleted:
    fields: dict[str, Any] = {"tokens": 500, "duration_s": 0.25} | changes
    return StepCompleted(
        batch=IDS.new(), step=step, stage=0, generation=0, checksum="c", items=4, metrics=metrics, **fields
    )


def test_a_step_is_one_line_with_what_its_engine_reports() -> None:
    clock = ManualClock()
    with capture_logs() as lines:
        log = StepLog(logger(), clock)
        log.step(done(1, {"actor/sft_loss": 2.000049}), "warmup", None)
        clock.advance(1.5)
        new = Publication(version=1, method="memory", size_bytes=9, duration_s=0.0123456)
        log.step(done(2, {"actor/final_loss": 1.0, "critic/rewards/mean": 1 / 3, "actor/kl_loss": 1e-9}), "rft", new)
        log.published(new)
        log.published(Publication(version=2, method="memory", size_bytes=9, duration_s=0.5))
    first, second, published = lines
    assert first == {
        **{"event": "step.completed", "log_level": "info", "step": 1, "stage": "warmup"},
        **{"loss": 2.0, "tokens": 500, "tokens_per_s": 2000.0, "duration_s": 0.25},
    }
    assert (second["reward"], second["loss"], second["kl"], second["interval_s"]) == (0.3333, 1.0, 1e-9, 1.5)
    assert (second["published"], second["publish_s"]) == (1, 0.01235)
    assert (published["event"], published["version"]) == ("weights.published", 2), "a line names each once"


def test_a_skipped_batch_is_a_warning_with_its_reason() -> None:
    with capture_logs() as lines:
        StepLog(logger(), ManualClock()).step(done(3, {}, tokens=0, skipped="the loss is nan"), "rft", None)
    assert [(line["event"], line["log_level"], line["step"], line["reason"]) for line in lines] == [
        ("step.skipped", "warning", 3, "the loss is nan")
    ]


def test_no_figure_and_no_name_breaks_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    configure()
    metrics = {"actor/final_loss": math.nan, "actor/grad_norm": math.inf}
    StepLog(logger(), ManualClock()).step(
        done(1, metrics, duration_s=0.0), 'a"\n{"event": "step.completed"}\x1b[2J', None
    )
    lines = out.getvalue().splitlines()
    assert len(lines) == 1, lines

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    said = json.loads(lines[0], parse_constant=refuse)
    assert (said["loss"], said["grad_norm"]) == ("nan", "inf")
    assert "tokens_per_s" not in said
    assert "\x1b" not in out.getvalue()


def test_of_many_failures_few_are_told_with_their_number() -> None:
    with capture_logs() as lines:
        log = RolloutLog(logger(), ManualClock())
        for number in range(1000):
            code = "RFTD-ROL-001" if number % 10 else "RFTD-ROL-002"
            log.ended(
                [RolloutFailed(group=IDS.new(), rollout=0, stage=0, lease=IDS.new(), code=code, reason="x" * 900)]
            )
    told = {
        code: [line["failed"] for line in lines if line["code"] == code] for code in {line["code"] for line in lines}
    }
    assert told == {
        "RFTD-ROL-001": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        "RFTD-ROL-002": [1, 2, 4, 8, 16, 32, 64],
    }
    assert {line["log_level"] for line in lines} == {"warning"}
    assert max(len(line["reason"]) for line in lines) == REASON_CHARS


def test_of_many_attempts_that_are_made_again_few_are_told_with_their_number() -> None:
    """A workflow that fails every second time costs half of the explorers' time, and its rollouts succeed."""
    with capture_logs() as lines:
        log = RolloutLog(logger(), ManualClock())
        for _ in range(100):
            log.tried_again(RolloutError("the sandbox is gone" + "x" * 900))
    assert [(line["event"], line["code"], line["retried"]) for line in lines] == [
        ("rollout.retried", RolloutError.code, count) for count in (1, 2, 4, 8, 16, 32, 64)
    ]
    assert all(line["reason"].startswith("the sandbox is gone") for line in lines)
    assert max(len(line["reason"]) for line in lines) == REASON_CHARS
