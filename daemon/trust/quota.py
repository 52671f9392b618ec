"""`Quota`: the limits of one token; `QuotaUses` counts the current use."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RftdError

if TYPE_CHECKING:
    from rftd.ops.clock import Clock

HOUR_S: Final = 3600.0
"""Seconds of the sliding window of hourly limits."""


class QuotaError(RftdError):
    """The token's limit of submissions, queued experiments, connections or event streams is reached."""

    code = "RFTD-API-009"
    remedy = "Try again later, end something of your own, or ask the daemon's owner for larger limits of the token."
    exit_status = 5
    http_status = 429
    retry_after_s: float | None = None
    """Time until the same request may succeed; None if another operation must end first."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one token; None: the limit of the role, and for the owner no limit."""

    submissions_per_hour: int | None = None
    """Submissions and forks within an hour."""
    queued: int | None = None
    """Experiments waiting in the queue."""
    connections: int | None = None
    """Concurrent requests, each on a separate connection."""
    streams: int | None = None
    """Concurrent event streams."""

    def within(self, defaults: Quota) -> Quota:
        """Returns these limits, completed by `defaults` for unset limits."""
        set_limits = {name: limit for name, limit in msgspec.structs.asdict(self).items() if limit is not None}
        return msgspec.structs.replace(defaults, **set_limits)


UNLIMITED: Final = Quota()
"""The owner's quota: only the daemon's general limits apply."""
QUOTAS: Final = {
    "read": Quota(
        submissions_per_hour=0,
        queued=0,
        connections=limits.READ_TOKEN_CONNECTIONS,
        streams=limits.READ_TOKEN_STREAMS,
    ),
    "submit": Quota(
        submissions_per_hour=limits.SUBMIT_TOKEN_SUBMISSIONS_PER_HOUR,
        queued=limits.SUBMIT_TOKEN_QUEUED_EXPERIMENTS,
        connections=limits.SUBMIT_TOKEN_CONNECTIONS,
        streams=limits.SUBMIT_TOKEN_STREAMS,
    ),
    "admin": Quota(
        submissions_per_hour=limits.ADMIN_TOKEN_SUBMISSIONS_PER_HOUR,
        queued=limits.ADMIN_TOKEN_QUEUED_EXPERIMENTS,
        connections=limits.ADMIN_TOKEN_CONNECTIONS,
        streams=limits.ADMIN_TOKEN_STREAMS,
    ),
}
"""The limits of each role."""
PRODUCER_QUOTA: Final = Quota(queued=limits.PRODUCER_QUEUED_EXPERIMENTS)
"""The limits of all programs submitting by records, together."""


class QuotaUse(msgspec.Struct, frozen=True, kw_only=True):
    """The current use of one token's quota: submissions in the last hour, connections and streams."""

    submissions_per_hour: int
    connections: int
    streams: int


class QuotaUses:
    """The use of quotas by token name, starting from zero with each start of the daemon."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._submitted_s: defaultdict[str, deque[float]] = defaultdict(deque)
        self._connections: defaultdict[str, int] = defaultdict(int)
        self._streams: defaultdict[str, int] = defaultdict(int)

    def use_of(self, name: str) -> QuotaUse:
        """Returns the current use of one token, by the token's name."""
        return QuotaUse(
            submissions_per_hour=len(self._recent(name)),
            connections=self._connections[name],
            streams=self._streams[name],
        )

    def take_submission(self, name: str, quota: Quota) -> None:
        """Counts a submission. Raises QuotaError, with the time to wait, if the hourly limit is reached."""
        recent = self._recent(name)
        if quota.submissions_per_hour is not None and len(recent) >= quota.submissions_per_hour:
            refusal = QuotaError(
                f"the token {name!r} may submit {quota.submissions_per_hour} experiments an hour", fix="wait"
            )
            refusal.retry_after_s = recent[0] + HOUR_S - self._clock.monotonic_s() if recent else HOUR_S
            raise refusal
        if quota.submissions_per_hour is not None:
            recent.append(self._clock.monotonic_s())

    @contextmanager
    def connection(self, name: str, quota: Quota) -> Iterator[None]:
        """Occupies one of the token's connections. Raises QuotaError if all are in use."""
        if quota.connections is not None and self._connections[name] >= quota.connections:
            refusal = QuotaError(
                f"{quota.connections} requests with the token {name!r} are under way", fix="let one of them end"
            )
            refusal.retry_after_s = 1.0
            raise refusal
        self._connections[name] += 1
        try:
            yield
        finally:
            self._connections[name] -= 1

    def check_stream(self, name: str, quota: Quota) -> None:
        """Raises QuotaError if the token's event streams are all open."""
        if quota.streams is not None and self._streams[name] >= quota.streams:
            raise QuotaError(
                f"{quota.streams} event streams with the token {name!r} are open", fix="end another `rftd watch`"
            )

    @contextmanager
    def stream(self, name: str, quota: Quota) -> Iterator[None]:
        """Occupies one of the token's event streams. Raises QuotaError if all are in use."""
        self.check_stream(name, quota)
        self._streams[name] += 1
        try:
            yield
        finally:
            self._streams[name] -= 1

    def _recent(self, name: str) -> deque[float]:
        recent = self._submitted_s[name]
        while recent and recent[0] <= self._clock.monotonic_s() - HOUR_S:
            recent.popleft()
        return recent
