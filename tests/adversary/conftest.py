"""The daemon that the corpus is asked of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from synthetic.worlds.adversary import CANARY, Gate, gate

SECRETS = ("OPENAI_API_KEY", "RFTD_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN")


@pytest.fixture
async def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    """A gate that knows secrets, and whose owner has a cache that is not among the roots."""
    for name in SECRETS:
        monkeypatch.setenv(name, CANARY)
    async with gate(tmp_path) as opening:
        monkeypatch.setenv("HF_HUB_CACHE", opening.here("{outside}/hub"))
        yield opening
