"""`Asker`: the name and the role of whoever gives a command or asks for a read."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from rftd.daemon.trust.quota import PRODUCER_QUOTA, UNLIMITED, Quota
from rftd.ops.errors import UsageError


class AccessRole(IntEnum):
    """The rights of a token; each role includes those below it."""

    READ = 1
    """Reads: experiments, experiences, logs, metrics."""
    SUBMIT = 2
    """Submissions, and commands about experiments that the same asker submitted."""
    ADMIN = 3
    """Commands about everybody's experiments, archives, removals and dead letters."""
    OWNER = 4
    """A submission may name whatever the daemon's user may: any file, URL, variable and code."""

    @property
    def label(self) -> str:
        """The role as a configuration and an event have it."""
        return self.name.lower()


class NotAllowedError(UsageError):
    """The asker's role is too small, or the daemon's configuration does not allow what the submission names."""

    code = "RFTD-API-008"
    remedy = "Ask the daemon's owner for a token of a larger role, or for the line that the message names."
    exit_status = 5
    http_status = 403


class Asker(msgspec.Struct, frozen=True):
    """Whoever asks: the name of a token, or a way into the daemon that has none."""

    name: str
    role: AccessRole
    quota: Quota = UNLIMITED
    """The limits of the token, those of its role included."""

    @property
    def is_owner(self) -> bool:
        """True if a submission may name what the daemon's user may."""
        return self.role is AccessRole.OWNER

    def check_role(self, needed: AccessRole) -> None:
        """Raises NotAllowedError if the role is smaller than the one that is needed."""
        if self.role < needed:
            raise NotAllowedError(
                f"the token {self.name!r} has the role {self.role.label}, and this needs {needed.label}",
                field="Authorization",
                fix=f"ask the daemon's owner for a token: rftd token add NAME --role {needed.label}",
            )

    def check_concerned(self, submitted_by: str, *, name: str) -> None:
        """Raises NotAllowedError for a command about somebody else's experiment, unless the role is admin."""
        if self.role < AccessRole.ADMIN and submitted_by != self.name:
            raise NotAllowedError(
                f"{name} was submitted by somebody else, and the token {self.name!r} has the role {self.role.label}",
                field="Authorization",
                fix="ask its submitter, or somebody whose token has the role admin",
            )

    def check_same(self, submitted_by: str, *, name: str) -> None:
        """Raises NotAllowedError unless this asker submitted the other half of an experiment, or is the owner."""
        if submitted_by != self.name and not self.is_owner:
            raise NotAllowedError(
                f"the other half of {name} was submitted by somebody else",
                field="mode",
                fix="submit both halves with the same token, or choose a name",
            )


OWNER: Final = Asker("owner", AccessRole.OWNER)
"""The person whose user the daemon runs as."""
PRODUCER: Final = Asker("producer", AccessRole.SUBMIT, PRODUCER_QUOTA)
"""Every program that writes requests as records: the broker knows who it is, a record does not."""
