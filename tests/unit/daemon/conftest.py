"""Fixtures of a daemon without workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.experiment_files import config
from synthetic.daemon.house import House, open_house
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.log.tape import Tape


@pytest.fixture
async def house(tmp_path: Path, anyio_backend: str) -> AsyncIterator[House]:
    """One open house."""
    async with open_house(tmp_path) as opened:
        yield opened


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    """Its client."""
    async with house.client() as opened:
        yield opened


@pytest.fixture
async def swept(client: httpx.AsyncClient) -> str:
    """The name of a sweep in the house, of two rates with two seeds each, which nobody runs."""
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
async def longer(house: House) -> SyntheticRun:
    """A second run in the house, named `longer`, of more steps."""
    run = SyntheticRun(Tape(seed=7), name="longer", steps=5, seed=7, faults=False).write()
    await house.log.append(run.tape.drafts)
    await house.projector.catch_up()
    return run
