"""`Rehearsals`: commands carried out up to their first append, and answered by their consequence (`dry_run`)."""

from __future__ import annotations

import copy
from typing import NoReturn, Self

from rftd.daemon.run.consequence import Consequence, Rehearsed
from rftd.daemon.run.registry import Entry
from rftd.daemon.run.supervisor.foresight import Outlook, foreseen
from rftd.daemon.run.supervisor.inbox import check_command, check_transition
from rftd.daemon.run.supervisor.loss_check import LossCheck
from rftd.daemon.run.supervisor.runs import Runs
from rftd.daemon.run.why.life import Line
from rftd.streams.events.registry import Event


class Rehearsals:
    """The state of commands that pass every check and append nothing."""

    runs: Runs
    """Experiments running on this daemon."""
    _loss_check: LossCheck
    """Check for lost records: a stopped experiment accepts no command."""
    _rehearses: bool = False
    """True in a view of the commands made by `rehearsing`."""
    _release_after_s: float
    """Seconds from a person's pause to the release of the workers."""

    def rehearsing(self) -> Self:
        """Returns a view of these commands raising `Rehearsed` in place of the first append. See
        `Operations.rehearsing`.
        """
        bound = copy.copy(self)
        bound._rehearses = True
        return bound

    async def _rehearse(self, entry: Entry, event: Event) -> NoReturn:
        """Raises `Rehearsed` with the consequence of a command, or the error of an illegal one."""
        run = self.runs.of(entry.id)
        if run is not None:
            check_command(run.state, event)
        else:
            await self._loss_check.compare_idle_heads(entry)
            check_transition(entry.spine, event)
        raise Rehearsed(foreseen(event, self._outlook(entry)))

    def _outlook(self, entry: Entry) -> Outlook:
        """Returns the experiment and its daemon at this moment."""
        run = self.runs.of(entry.id)
        line = self._current_line()
        return Outlook(
            entry=entry,
            line=line.entries,
            slots=line.slots,
            release_after_s=self._release_after_s,
            snapshot=None if run is None else run.snapshot(),
            work=None if run is None else run.under_way(),
        )

    def _end_rehearsal(self, consequence: Consequence) -> None:
        """Raises `Rehearsed` if this view rehearses."""
        if self._rehearses:
            raise Rehearsed(consequence)

    def _current_line(self) -> Line:
        """Returns running and queued experiments in starting order; implemented by AskedCommands."""
        raise NotImplementedError
