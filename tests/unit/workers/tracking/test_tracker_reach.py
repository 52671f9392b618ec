"""A tracker of a stranger's experiment sends a key to the hosts that it was allowed for, and to no other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import spec_of

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError, NotFoundError, RftdError
from rftd.ops.logs import logger
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentSubmitted
from rftd.streams.log import topics
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.engines import ReachSpec
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.process import run_tracker

pytestmark = pytest.mark.anyio
OURS = "https://tracker.example.com"
OTHERS = "https://collector.example.com"
INNER = "http://10.0.0.1:5000"
ENVIRON = {"OURS": OURS, "OTHERS": OTHERS, "INNER": INNER, "KEY": "k3y-of-the-daemon"}
REACH = ReachSpec(
    restricted=True,
    secrets={
        "OURS": ("tracker.example.com",),
        "OTHERS": ("collector.example.com",),
        "INNER": ("tracker.example.com",),
        "KEY": ("tracker.example.com",),
    },
)


async def refused(folder: Path, tracker: TrackerSpec, reach: ReachSpec, environ: dict[str, str]) -> str:
    """The refusal of a tracker by its address; empty for one that came as far as its package, which is not here."""
    recorder = Recorder()
    run = recorder.ids.new()
    spec = msgspec.structs.replace(spec_of("small", 1, str(folder)), trackers=(tracker,), reach=reach)
    recorder.write(ExperimentSubmitted(spec=spec), run)
    recorder.fence("controller", run, partition_of(topics.EXPERIMENTS, run))
    recorder.write(ExperimentAccepted(start=()), run, role="controller")
    log = MemoryLog()
    await log.append(recorder.drafts)
    with pytest.raises(RftdError) as caught:
        await run_tracker(
            log,
            run,
            tracker.kind,
            stop=asyncio.Event(),
            clock=ManualClock(),
            logger=logger(),
            environ=environ,
            until_head=True,
            into=folder / "none",
        )
    error = caught.value
    assert not isinstance(error, NotFoundError) or "is not here" in error.what
    told = f"{error.what} {error.fix} {error.where}"
    assert not any(value in told for value in environ.values())
    return error.what if isinstance(error, ConfigError) and "does not allow" in error.what else ""


def wandb(address: str) -> TrackerSpec:
    return TrackerSpec(kind="wandb", variables={"base_url": address, "api_key": "KEY"})


async def test_a_key_goes_to_its_hosts_alone(tmp_path: Path) -> None:
    assert await refused(tmp_path, wandb("OURS"), REACH, ENVIRON) == ""
    assert "to send KEY to this address" in await refused(tmp_path, wandb("OTHERS"), REACH, ENVIRON)


async def test_an_address_in_a_variable_is_held_to_what_is_allowed(tmp_path: Path) -> None:
    assert "to send INNER to this address" in await refused(tmp_path, wandb("INNER"), REACH, ENVIRON)


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME"])
async def test_a_key_that_the_library_reads_by_itself_is_held_to_its_hosts_too(tmp_path: Path, name: str) -> None:
    tracker = TrackerSpec(kind="mlflow", variables={"uri": "OTHERS"})
    assert await refused(tmp_path, tracker, REACH, ENVIRON) == ""
    assert name in await refused(tmp_path, tracker, REACH, {**ENVIRON, name: "s3cr3t-of-the-daemon"})


async def test_the_owner_sends_what_he_wants_where_he_wants(tmp_path: Path) -> None:
    assert await refused(tmp_path, wandb("OTHERS"), ReachSpec(), ENVIRON) == ""
