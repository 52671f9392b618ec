"""`judged`: a submission as judged by the daemon, or the reason for a check only on this machine.

No HTTP client is imported without a listening daemon: a check of a file must answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rftd.daemon.cli.settings import Settings
from rftd.daemon.config.issue import say_where
from rftd.daemon.http.client.address import NoDaemonError, find_daemon, somebody_listens
from rftd.ops.errors import RftdError
from rftd.workers.devices.discovery import find_host
from rftd.workers.devices.host import ANY_HOST, Host

if TYPE_CHECKING:
    from rftd.daemon.config.loading import Submission
    from rftd.daemon.http.views.commands import CheckReport

_UNSEEN: Final = "models, datasets and folders were not looked at; `rftd doctor FILE` looks at them here"
"""Clause added to a verdict without a daemon."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The daemon's verdict on a submission, or the reason for its absence."""

    url: str
    """Address of the daemon; empty if the named folder has none."""
    report: CheckReport | None
    """The daemon's report; None without an answer."""
    why: str = ""
    """Reason for the missing report."""

    @property
    def said(self) -> str:
        """The verdict in one sentence: accepted with its folder, or checked only on this machine."""
        if self.report is None:
            return f"checked here only: {self.why}; {_UNSEEN}"
        return f"the daemon at {self.url} would accept it; folder: {self.report.job_dir}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A submission with the daemon's verdict and all warnings, without duplicates."""

    submission: Submission
    """The submission as loaded for its workers."""
    there: DryRun
    """The daemon's verdict, or why there is none."""
    warnings: tuple[str, ...]
    """Warnings of the file and of the daemon, without duplicates."""


def judged(
    load: Callable[[Host, bool], Submission],
    settings: Settings,
    environ: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> Judged:
    """Returns the submission as judged by the daemon, or, without a daemon, as a daemon on this machine would judge the
    file.

    `load` reads the submission for workers on a host; on request, errors that a daemon may judge differently are only
    noted. Raises the errors of a submission, each with its line, and UnreachableError for a broken or incomplete
    answer: a daemon is there, but its verdict is unknown.
    """
    try:
        url = find_daemon(settings, environ)
    except NoDaemonError as error:
        return _judged_here(load, DryRun("", None, error.what))
    if not somebody_listens(url, timeout_s=settings.answer_timeout_s):
        return _judged_here(load, DryRun(url, None, f"no daemon answers at {url}"))
    # The daemon knows its own machine, possibly another one.
    submission = load(ANY_HOST, True)
    verdict = _judged_by_daemon(settings, environ, submission, labels or {})
    if verdict.report is None:
        return _judged_here(load, verdict)
    # Of the warnings independent of a machine, the daemon has sent those true on its own.
    notes = [text for text in submission.warnings if text not in submission.spec.warnings]
    return Judged(submission, verdict, tuple(dict.fromkeys([*notes, *verdict.report.warnings])))


def _judged_here(load: Callable[[Host, bool], Submission], verdict: DryRun) -> Judged:
    """Returns the submission loaded for workers on this machine, beside a verdict without a report."""
    submission = load(find_host(), False)
    return Judged(submission, verdict, submission.warnings)


def _judged_by_daemon(
    settings: Settings, environ: Mapping[str, str], submission: Submission, labels: Mapping[str, str]
) -> DryRun:
    """Returns the daemon's verdict, without a report if no daemon answers. Raises the errors of the submission, each
    with its line in the file.
    """
    from rftd.daemon.http.client.client import Client, nobody_listens
    from rftd.daemon.http.views import commands

    with Client(settings, environ) as client:
        try:
            body = commands.Submit(config=submission.config, labels=dict(labels))
            return DryRun(client.url, client.send(commands.check, body).value)
        except RftdError as error:
            if isinstance(error, NoDaemonError):
                return DryRun(client.url, None, error.what)
            if nobody_listens(error):
                return DryRun(client.url, None, f"no daemon answers at {client.url}")
            say_where(error, submission.source)
            raise
