"""`Keeping`: retention rules for payloads and files no longer needed for training."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Keep(StrEnum):
    """Retention of payloads in the log; payloads of an archived or removed experiment are dropped in any case."""

    ALWAYS = "always"
    UNTIL_ENDED = "until-ended"
    UNTIL_TRAINED = "until-trained"


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """When a daemon drops payloads and archives files of ended experiments.

    Experiments not ended, restored, or with a living fork keep everything.
    """

    payloads: Keep = Keep.ALWAYS
    """Retention of payloads; only `UNTIL_TRAINED` also concerns experiments that have not ended."""
    drop_payloads_after_s: float | None = None
    """Age after an experiment's end at which payloads are dropped; None: never because of age."""
    drop_payloads_above_bytes: int | None = None
    """Size of the log above which payloads are dropped, of the earliest ended experiments first; None: no limit."""
    archive_after_s: float | None = None
    """Age after an experiment's end at which files are archived; None: only on request."""

    @property
    def drops(self) -> str:
        """Name of the option by which payloads are dropped; empty if they are kept."""
        if self.payloads is not Keep.ALWAYS:
            return "--payloads"
        if self.drop_payloads_after_s is not None:
            return "--drop-payloads-after"
        return "--drop-payloads-above" if self.drop_payloads_above_bytes is not None else ""

    @property
    def archives_lack_payloads(self) -> bool:
        """True if payloads are dropped before their experiment is archived, so that archives lack them."""
        if self.archive_after_s is None:
            return False
        if self.payloads is not Keep.ALWAYS:
            return True
        return self.drop_payloads_after_s is not None and self.drop_payloads_after_s <= self.archive_after_s
