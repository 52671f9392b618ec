"""`OneByOne`: what ended and was not asked for is dropped without a word."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from uuid import UUID

import pytest

from rftd.ops.errors import RolloutError
from rftd.ops.logs import logger
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.attempt import OneByOne, RolloutRequest, TaskRollout
from rftd.workers.workflows.orphans import Orphans
from rftd.workers.workflows.result import RolloutResult

pytestmark = pytest.mark.anyio


async def test_a_failure_that_came_before_the_attempt_was_left_is_no_unhandled_one() -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    failing = asyncio.Event()
    failed = asyncio.Event()

    async def run(rollout: TaskRollout) -> RolloutResult:
        if rollout.request.number == 1:
            await failing.wait()
            asyncio.get_running_loop().call_soon(failed.set)
        raise RolloutError(f"rollout {rollout.request.number} fails")

    task = Task(taskset="t", row=0, epoch=0, prompt="?", messages=(), truth="", workflow="w")
    requests = [RolloutRequest(number=number, id=UUID(int=number), seed=UUID(int=7), row=0) for number in (0, 1)]
    attempt = OneByOne([TaskRollout(request, task) for request in requests], run, Orphans(logger(), grace_s=30.0))
    [(place, error)] = await attempt.some()
    assert (place, str(error)) == (0, str(RolloutError("rollout 0 fails")))
    failing.set()
    await failed.wait()
    assert await attempt.leave() == set()
    del attempt, error  # whose traceback holds the attempt
    gc.collect()
    assert unhandled == []
