"""`Keeping`: the rules by which a daemon lets payloads and files go that nobody trains any more."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Keep(StrEnum):
    """The time for which payloads stay in the log; those of an archived or removed experiment go in any case."""

    ALWAYS = "always"
    UNTIL_ENDED = "until-ended"
    UNTIL_TRAINED = "until-trained"


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one daemon. An experiment that has not ended, was restored or has a living fork keeps everything."""

    payloads: Keep = Keep.ALWAYS
    """The only rule that concerns experiments which have not ended, too: `UNTIL_TRAINED`."""
    drop_payloads_after_s: float | None = None
    """An experiment's payloads go so long after its end; None: never because of its age."""
    drop_payloads_above_bytes: int | None = None
    """While the log takes more, the payloads of the experiment go that ended first; None: however large it is."""
    archive_after_s: float | None = None
    """An experiment's files go into an archive so long after its end; None: only on request."""

    @property
    def drops(self) -> str:
        """The option that lets payloads go by rule; empty if none does."""
        if self.payloads is not Keep.ALWAYS:
            return "--payloads"
        if self.drop_payloads_after_s is not None:
            return "--drop-payloads-after"
        return "--drop-payloads-above" if self.drop_payloads_above_bytes is not None else ""

    @property
    def archives_lack_payloads(self) -> bool:
        """True if payloads go, by age, before the archive is made that would hold them."""
        if self.archive_after_s is None:
            return False
        if self.payloads is not Keep.ALWAYS:
            return True
        return self.drop_payloads_after_s is not None and self.drop_payloads_after_s <= self.archive_after_s
