"""The read of a daemon's rules for dropping payloads and archiving files."""

from __future__ import annotations

import msgspec

from rftd.daemon.http.views.route import Daemon, read


class KeepingRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a daemon for ended experiments; None: no such rule."""

    payloads: str
    """Retention of the tokens of experiences in the log: `always`, `until-ended` or `until-trained`."""
    drop_payloads_after_s: float | None
    """Seconds between the end of an experiment and the drop of its tokens."""
    drop_payloads_above_bytes: int | None
    """Size of the log on disk above which tokens are dropped, first those of the experiment ended first."""
    log_excess_bytes: int
    """Bytes above this size after dropping everything allowed."""
    archive_after_s: float | None
    """Seconds between the end of an experiment and its archiving."""
    archives_lack_payloads: bool
    """True if tokens are dropped before the archive containing them would be made."""


@read("/v1/keeping", KeepingRules, tag="access")
async def keeping(daemon: Daemon) -> KeepingRules:
    """The rules for dropping payloads from the log, and for moving files into archives."""
    rules = daemon.operations.keeping
    return KeepingRules(
        payloads=rules.payloads.value,
        drop_payloads_after_s=rules.drop_payloads_after_s,
        drop_payloads_above_bytes=rules.drop_payloads_above_bytes,
        log_excess_bytes=daemon.operations.log_excess_bytes,
        archive_after_s=rules.archive_after_s,
        archives_lack_payloads=rules.archives_lack_payloads,
    )
