"""`dry_run`: a submission as the daemon would judge it, or why none has: then it was checked here only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rftd.daemon.client.client import Client, nobody_listens
from rftd.daemon.config.issue import say_where
from rftd.daemon.settings import Settings
from rftd.daemon.views import commands
from rftd.ops.errors import RftdError

if TYPE_CHECKING:
    from rftd.daemon.config.loading import Submission
    from rftd.daemon.views.commands import CheckReport

_NO_SUCH_PATH: Final = ("RFTD-API-004", "RFTD-NOF-001")
"""Codes with which a daemon of a release without checks answers: the path is that of an experiment's page."""
_UNSEEN: Final = "names of third parties, models, datasets, GPUs and folders were not looked at"


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


def dry_run(settings: Settings, submission: Submission, labels: Mapping[str, str] | None = None) -> DryRun:
    """The daemon's word on a submission; nothing is appended. Where there is none, what is wrong here counts.

    Raises what a submission would raise, each error with its line, and UnreachableError for an answer that is broken or
    cut off: somebody is there, and what they think is not known.
    """
    with Client(settings) as client:
        try:
            body = commands.Submit(config=submission.config, labels=dict(labels or {}))
            return DryRun(client.url, client.send(commands.check, body).value)
        except RftdError as error:
            if submission.wrong and (nobody_listens(error) or error.code in _NO_SUCH_PATH):
                raise submission.wrong from None
            if nobody_listens(error):
                return DryRun(client.url, None, f"no daemon answers at {client.url}")
            if error.code in _NO_SUCH_PATH:
                return DryRun(client.url, None, f"the daemon at {client.url} is of a release that cannot check")
            say_where(error, submission.source)
            raise
