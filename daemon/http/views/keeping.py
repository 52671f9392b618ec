"""The read of the rules by which a daemon lets payloads and files go."""

from __future__ import annotations

import msgspec

from rftd.daemon.http.views.route import Daemon, read


class KeepingRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a daemon for experiments that have ended; None: no such rule."""

    payloads: str
    """Time for which the log keeps the tokens of experiences: `always`, `until-ended` or `until-trained`."""
    drop_payloads_after_s: float | None
    """Seconds after the end of an experiment at which its tokens are dropped."""
    drop_payloads_above_bytes: int | None
    """Size of the log on disk above which tokens are dropped, first those of the experiment that ended first."""
    log_excess_bytes: int
    """Bytes above that size after everything that may be dropped was."""
    archive_after_s: float | None
    """Seconds after its end at which an experiment is archived."""
    archives_lack_payloads: bool
    """True if tokens go before the archive is made that would hold them."""


@read("/v1/keeping", KeepingRules, tag="access")
async def keeping(daemon: Daemon) -> KeepingRules:
    """The rules by which payloads leave the log, and files go into archives."""
    rules = daemon.operations.keeping
    return KeepingRules(
        payloads=rules.payloads.value,
        drop_payloads_after_s=rules.drop_payloads_after_s,
        drop_payloads_above_bytes=rules.drop_payloads_above_bytes,
        log_excess_bytes=daemon.operations.log_excess_bytes,
        archive_after_s=rules.archive_after_s,
        archives_lack_payloads=rules.archives_lack_payloads,
    )
