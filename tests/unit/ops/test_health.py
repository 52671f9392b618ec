"""Checks that fail, break or hang, and what a probe makes of them."""

from __future__ import annotations

import asyncio

import pytest

from rftd.ops.errors import UnreachableError
from rftd.ops.health import Health

pytestmark = pytest.mark.anyio


async def fine() -> str | None:
    return None


async def unwell() -> str | None:
    return "too late"


async def broken() -> str | None:
    raise UnreachableError("no answer")


async def buggy() -> str | None:
    raise ValueError("oops")


async def hanging() -> str | None:
    await asyncio.Event().wait()
    return None


async def test_every_way_of_failing_has_its_reason() -> None:
    health = Health(timeout_s=0.01)
    for name, check in {"a": fine, "b": unwell, "c": broken, "d": buggy, "e": hanging}.items():
        health.add(name, check)
    verdict = await health.ready()
    assert not verdict.ok
    assert {finding.name: finding.reason for finding in verdict.checks} == {
        "a": "",
        "b": "too late",
        "c": "RFTD-NET-001: no answer",
        "d": "ValueError: oops",
        "e": "no answer within 0.01 s",
    }


async def test_liveness_asks_only_where_a_restart_helps() -> None:
    health = Health()
    health.add("log", fine, live=True)
    health.add("tables", unwell)
    assert (await health.live()).ok
    assert not (await health.ready()).ok
