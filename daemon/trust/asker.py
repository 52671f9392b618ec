"""`Asker`: the name and the role behind a command or a read."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from rftd.daemon.trust.quota import PRODUCER_QUOTA, UNLIMITED, Quota
from rftd.ops.errors import UsageError


class AccessRole(IntEnum):
    """The rights of a token; each role includes the smaller ones."""

    READ = 1
    """Reads: experiments, experiences, logs, metrics."""
    SUBMIT = 2
    """Submissions, and commands about experiments submitted by the asker."""
    ADMIN = 3
    """Commands about everybody's experiments, archives, removals and dead letters."""
    OWNER = 4
    """Submissions naming anything accessible to the daemon's user: any file, URL, variable and code."""

    @property
    def label(self) -> str:
        """The role's name in configurations and events."""
        return self.name.lower()


class NotAllowedError(UsageError):
    """The asker's role is insufficient, or the daemon's configuration does not allow a name in the submission."""

    code = "RFTD-API-008"
    remedy = "Ask the daemon's owner for a token of a larger role, or for the line that the message names."
    exit_status = 5
    http_status = 403


class Asker(msgspec.Struct, frozen=True):
    """The origin of a request: the name of a token, or of an entrance without tokens."""

    name: str
    role: AccessRole
    quota: Quota = UNLIMITED
    """Limits of the token, including the limits of the role."""

    @property
    def is_owner(self) -> bool:
        """True if submissions may name anything accessible to the daemon's user."""
        return self.role is AccessRole.OWNER

    def check_role(self, needed: AccessRole) -> None:
        """Raises NotAllowedError if the role is smaller than `needed`, naming the command to get a suitable token."""
        if self.role < needed:
            raise NotAllowedError(
                f"the token {self.name!r} has the role {self.role.label}, and this needs {needed.label}",
                field="Authorization",
                fix=f"ask the daemon's owner for a token: rftd token add NAME --role {needed.label}",
            )

    def check_concerned(self, submitted_by: str, *, name: str) -> None:
        """Raises NotAllowedError for a command about another asker's experiment, unless the role is admin."""
        if self.role < AccessRole.ADMIN and submitted_by != self.name:
            raise NotAllowedError(
                f"{name} was submitted by somebody else, and the token {self.name!r} has the role {self.role.label}",
                field="Authorization",
                fix="ask its submitter, or somebody whose token has the role admin",
            )

    def check_same(self, submitted_by: str, *, name: str) -> None:
        """Raises NotAllowedError unless the asker submitted the other half of an experiment, or is the owner."""
        if submitted_by != self.name and not self.is_owner:
            raise NotAllowedError(
                f"the other half of {name} was submitted by somebody else",
                field="mode",
                fix="submit both halves with the same token, or choose a name",
            )


OWNER: Final = Asker("owner", AccessRole.OWNER)
"""The person running the daemon."""
PRODUCER: Final = Asker("producer", AccessRole.SUBMIT, PRODUCER_QUOTA)
"""All programs writing requests as records: authenticated by the broker, but not distinguishable by a record."""
