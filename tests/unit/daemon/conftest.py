"""Fixtures of a daemon without workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts, open_daemon
from synthetic.daemon.experiment_files import config
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun


@pytest.fixture
async def parts(tmp_path: Path, anyio_backend: str) -> AsyncIterator[DaemonParts]:
    """One open parts."""
    async with open_daemon(tmp_path) as opened:
        yield opened


@pytest.fixture
async def client(parts: DaemonParts) -> AsyncIterator[httpx.AsyncClient]:
    """Its client."""
    async with parts.client() as opened:
        yield opened


@pytest.fixture
async def swept(client: httpx.AsyncClient) -> str:
    """The name of a sweep in the parts, of two rates with two seeds each, which nobody runs."""
    points = [
        {
            "settings": {"algorithm.optimizer.lr": rate},
            "seed": seed,
            "changes": [{"path": ["algorithm", "optimizer"], "value": {"lr": float(rate)}}],
        }
        for rate in ("1e-6", "3e-6")
        for seed in (1, 2)
    ]
    answer = await client.post("/v1/sweeps", json={"config": config(), "points": points, "name": "lr"})
    assert answer.status_code == 202, answer.text
    return "lr"


@pytest.fixture
async def longer(parts: DaemonParts) -> SyntheticRun:
    """A second run in the parts, named `longer`, of more steps."""
    run = SyntheticRun(Recorder(seed=7), name="longer", steps=5, seed=7, faults=False).write()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    return run
