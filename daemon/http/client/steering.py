"""`SteeredRun`: the commands to one experiment, each also as a dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload
from uuid import UUID

import msgspec

from rftd.daemon.http.client.submission import overrides_of
from rftd.daemon.http.views import annotations as annotation_views
from rftd.daemon.http.views import commands, experiments
from rftd.daemon.http.views import tasks as task_views
from rftd.daemon.http.views.annotations import AnnotationList
from rftd.daemon.http.views.commands import Receipt
from rftd.daemon.http.views.route import CommandRoute
from rftd.daemon.run.consequence import Consequence

if TYPE_CHECKING:
    from rftd.daemon.http.client.connection import DaemonConnection

B = TypeVar("B", bound=msgspec.Struct)
"""Type of a command's body."""


class SteeredRun:
    """The commands to an experiment; with `dry_run` nothing is recorded, and the consequence is returned."""

    def __init__(self, connection: DaemonConnection, id: str, name: str, *, position: str | None = None) -> None:
        """`position` is the record of the experiment's submission in the log; reads wait until the tables have it."""
        self._connection = connection
        """Connection to the daemon."""
        self.id = id
        """Id of the experiment."""
        self.name = name
        """Name of the experiment."""
        self._position = position
        """Record of the experiment's submission in the log, awaited by reads; None if unknown."""

    async def pause(self, *, reason: str = "", dry_run: bool = False) -> Receipt | Consequence:
        """Pauses the experiment."""
        return await self._send(commands.pause, commands.Reason(reason=reason), dry_run)

    async def resume(self, *, reason: str = "", dry_run: bool = False) -> Receipt | Consequence:
        """Resumes the experiment."""
        return await self._send(commands.resume, commands.Reason(reason=reason), dry_run)

    async def cancel(self, *, reason: str = "", dry_run: bool = False) -> Receipt | Consequence:
        """Cancels the experiment; everything produced is kept."""
        return await self._send(commands.cancel, commands.Reason(reason=reason), dry_run)

    async def prioritize(self, priority: int, *, reason: str = "", dry_run: bool = False) -> Receipt | Consequence:
        """Changes the priority in the queue."""
        return await self._send(commands.prioritize, commands.Prioritize(priority=priority, reason=reason), dry_run)

    async def archive(self, to: str = "", *, dry_run: bool = False) -> Receipt | Consequence:
        """Moves the files of an ended experiment into one archive file."""
        return await self._send(commands.archive, commands.To(to=to), dry_run)

    async def restore(self, source: str = "", *, dry_run: bool = False) -> Receipt | Consequence:
        """Restores the files of an archived experiment."""
        return await self._send(commands.restore, commands.From(source=source), dry_run)

    async def remove(self, *, reason: str = "", archive: bool = False, dry_run: bool = False) -> Receipt | Consequence:
        """Deletes the files of an ended experiment; the events stay in the log."""
        return await self._send(commands.remove, commands.Remove(reason=reason, archive=archive), dry_run)

    async def note(
        self,
        text: str = "",
        *,
        rollout: str | None = None,
        star: bool | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> Receipt | Consequence:
        """Adds a note, a star or labels (the whole set) to the experiment, or to an experience by its id."""
        body = annotation_views.Annotate(
            experience=None if rollout is None else UUID(rollout),
            note=text,
            star=star,
            labels=None if labels is None else dict(labels),
        )
        return await self._send(annotation_views.annotate, body, dry_run)

    async def notes(self) -> AnnotationList:
        """Returns the notes, the star and the labels of the experiment and its rollouts."""
        return (await self._connection.ask(annotation_views.annotated, name=self.id, after=self._position)).value

    async def add_tasks(
        self, tasks: Sequence[Mapping[str, Any]], *, end: bool = False, dry_run: bool = False
    ) -> Receipt | Consequence:
        """Adds tasks to the queue of a running experiment, at most 1,000 in one call; with `end`, the last ones."""
        body = task_views.AddTasks(tasks=[dict(task) for task in tasks])
        receipt = await self._send(task_views.add_tasks, body, dry_run)
        if end and not dry_run:
            return await self.end_tasks()
        return receipt

    async def end_tasks(self, *, reason: str = "", dry_run: bool = False) -> Receipt | Consequence:
        """Ends the queue of tasks: the experiment completes with the step that takes in the last of them."""
        return await self._send(task_views.end_tasks, commands.Reason(reason=reason), dry_run)

    @overload
    async def fork(
        self,
        /,
        at_step: int,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: Literal[False] = False,
        **fields: Any,
    ) -> Self: ...

    @overload
    async def fork(
        self,
        /,
        at_step: int,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: Literal[True],
        **fields: Any,
    ) -> Consequence: ...

    async def fork(
        self,
        /,
        at_step: int,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: bool = False,
        **fields: Any,
    ) -> Self | Consequence:
        """Starts a new experiment from a step of this one; `fields` as in `Client.submit`."""
        from rftd.daemon.config.loading import portable_overrides

        page = await self._connection.ask(experiments.one, name=self.id, after=self._position)
        config = page.value.experiment.config
        overrides = portable_overrides(config, overrides_of(fields))
        body = commands.Fork(at_step=at_step, set=overrides, name=name, labels=dict(labels or {}))
        if dry_run:
            return (await self._connection.rehearse(commands.fork, body, name=self.id)).value
        receipt = (await self._connection.send(commands.fork, body, name=self.id)).value
        return type(self)(self._connection, receipt.id, receipt.name, position=receipt.position)

    async def _send(self, command: CommandRoute[B, Receipt], body: B, dry_run: bool) -> Receipt | Consequence:
        """Sends a command; returns its receipt, or its consequence in a dry run."""
        if dry_run:
            return (await self._connection.rehearse(command, body, name=self.id)).value
        return (await self._connection.send(command, body, name=self.id)).value
