"""A daemon that does not hear who remembers more than the log holds, or lets nothing remember it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from rftd.daemon.run.supervisor import loss_check
from rftd.daemon.run.supervisor.folder_claims import FolderClaims
from rftd.daemon.run.supervisor.loss_check import LossCheck
from simulator.bugs.bug import Bug, instead


def _nobody(_: Any) -> Any:
    def heard(_jobs: Any) -> list[Any]:
        return []

    return heard


@contextmanager
def _take_up_what_lost() -> Iterator[None]:
    free = mock.patch.object(LossCheck, "free", lambda _self, entries: list(entries))
    with free, mock.patch.object(LossCheck, "check", lambda _self, _entry: None):
        yield


def _anybodys(_: Any) -> Any:
    return lambda _self, _entry: None


BUGS = (
    Bug("a folder is anybody's", "two logs", instead(FolderClaims, "look", _anybodys), within_seeds=200),
    Bug(
        "nobody hears the folder of an experiment", "noticed", instead(loss_check, "of_jobs", _nobody), within_seeds=200
    ),
    Bug("what was heard stops nobody", "noticed", _take_up_what_lost, within_seeds=200),
)
