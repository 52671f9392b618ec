"""`judged`: a submission as the daemon would judge it, or why none has: then it was checked here only.

No HTTP client is imported where nobody listens: a check of a file is to answer at once.
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


@dataclass(frozen=True, slots=True)
class DryRun:
    """The daemon's word on a submission."""

    url: str
    report: CheckReport | None
    why: str = ""
    """The reason why there is no report."""

    @property
    def said(self) -> str:
        """It in one sentence."""
        if self.report is None:
            return f"checked here only: {self.why}; {_UNSEEN}"
        return f"the daemon at {self.url} would take it in, into {self.report.job_dir}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A submission with all that is to be said of it."""

    submission: Submission
    there: DryRun
    warnings: tuple[str, ...]


def judged(
    load: Callable[[Host, bool], Submission],
    settings: Settings,
    environ: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> Judged:
    """The submission as the daemon judges it, or, where none answers, as a daemon on this machine would of the file.

    `load` reads it for workers on a host; if told so, it only notes errors of which a daemon may think otherwise.
    Raises what a submission would raise, each error with its line, and UnreachableError for an answer that is broken or
    cut off: somebody is there, and what they think is not known.
    """
    try:
        url = find_daemon(settings, environ)
    except NoDaemonError as error:
        return _judged_here(load, DryRun("", None, error.what))
    if not somebody_listens(url, timeout_s=settings.timeout_s):
        return _judged_here(load, DryRun(url, None, f"no daemon answers at {url}"))
    # The daemon knows its own machine, which may be another one.
    submission = load(ANY_HOST, True)
    there = _asked(settings, environ, submission, labels or {})
    if there.report is None:
        return _judged_here(load, there)
    # Of what is said without a look at any machine, the daemon has said what is so on its own.
    notes = [text for text in submission.warnings if text not in submission.spec.warnings]
    return Judged(submission, there, tuple(dict.fromkeys([*notes, *there.report.warnings])))


def _judged_here(load: Callable[[Host, bool], Submission], there: DryRun) -> Judged:
    submission = load(find_host(), False)
    return Judged(submission, there, submission.warnings)


def _asked(settings: Settings, environ: Mapping[str, str], submission: Submission, labels: Mapping[str, str]) -> DryRun:
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
