"""Commands to a run that has not read its own beginning: nobody can tell whether they are legal, so they wait."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import pytest

from rftd.daemon.run.supervisor.inbox import Inbox, Request, check_command
from rftd.ops.errors import UnreachableError
from rftd.streams.events.experiment import ExperimentCancelled, ExperimentPaused
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TasksAdded, TasksEnded
from rftd.streams.folds.run_state import RunState

pytestmark = pytest.mark.anyio

EXPERIMENT = UUID(int=1)
COMMANDS = [
    ExperimentPaused(reason="a look", by="somebody"),
    ExperimentCancelled(reason="a mistake", by="somebody"),
    TasksAdded(stage=0, tasks=('{"question": "1+1="}',), by="somebody"),
    TasksEnded(stage=0, reason="no more", by="somebody"),
]


@pytest.mark.parametrize("event", COMMANDS, ids=lambda event: type(event).__name__)
async def test_command_before_the_run_has_read_its_events_is_to_be_repeated(event: Event) -> None:
    inbox = Inbox(EXPERIMENT, partial(check_command, RunState(EXPERIMENT)))
    waiting = asyncio.ensure_future(inbox.ask(event, Request(UUID(int=2))))
    await asyncio.sleep(0)
    inbox.close()
    with pytest.raises(UnreachableError, match="being restarted"):
        await waiting
    with pytest.raises(UnreachableError, match="being restarted"):
        await inbox.ask(event, Request(UUID(int=2)))
