"""Liveness and readiness, as named checks, and the lines of `rftd doctor`.

*Live*: the process should not be restarted; *ready*: the process can serve. A check without an answer in time has
failed, so a probe never hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from rftd.ops.errors import RftdError

CHECK_TIMEOUT_S: Final = 2.0
"""Time-out of a check in seconds."""

Check = Callable[[], Awaitable[str | None]]
"""A check returns None if all is well, a `Note` for information, or the reason of its failure; an exception is a
failure.
"""


class Note(str):
    """A check's information that is no failure."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    name: str
    """Name of the check."""
    ok: bool
    """True if the check passed."""
    reason: str = ""
    """The reason of the failure, or the text of a note."""


class Diagnosis(msgspec.Struct, frozen=True):
    """A line of the doctor's report; `fix` says what to do unless the status is `ok`."""

    check: str
    """Name of the check."""
    status: Literal["ok", "warn", "fail"]
    """Result of the check."""
    what: str
    """The fact found, in words."""
    fix: str = ""
    """Advice; empty if none is needed."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks; `ok` if none failed."""

    ok: bool
    """True if no check failed."""
    checks: tuple[Finding, ...]
    """Results in the order of registration."""


class Health:
    """The checks of a daemon, registered by its parts during start-up."""

    def __init__(self, *, timeout_s: float = CHECK_TIMEOUT_S) -> None:
        """Begins without checks; each may take at most `timeout_s` seconds."""
        self._timeout_s = timeout_s
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def add(self, name: str, check: Check, *, live: bool = False) -> None:
        """Registers a check of readiness; with `live`, also of liveness, for faults that only a restart can fix."""
        assert name not in self._ready, name
        self._ready[name] = check
        if live:
            self._live[name] = check

    async def live(self) -> Verdict:
        """Returns the verdict on liveness: `ok` if the process needs no restart."""
        return await self._run(self._live)

    async def ready(self) -> Verdict:
        """Returns the verdict on readiness: `ok` if requests can be served."""
        return await self._run(self._ready)

    async def _run(self, checks: dict[str, Check]) -> Verdict:
        # Concurrently, each with a separate time-out: a probe takes as long as the slowest check, not as the sum.
        """Runs all checks at the same time, and returns their results."""
        findings = await asyncio.gather(*(self._run_check(name, check) for name, check in checks.items()))
        return Verdict(ok=all(finding.ok for finding in findings), checks=tuple(findings))

    async def _run_check(self, name: str, check: Check) -> Finding:
        """Returns the finding of a check; a time-out or an exception is a failure."""
        try:
            async with asyncio.timeout(self._timeout_s):
                reason = await check()
        except TimeoutError:
            reason = f"no answer within {self._timeout_s:g} s"
        except RftdError as error:
            reason = finding_reason(error)
        except Exception as error:  # a check that raises is a finding, not an outage of the probe
            reason = f"{type(error).__name__}: {error}"
        return Finding(name=name, ok=reason is None or isinstance(reason, Note), reason=str(reason or ""))


def finding_reason(error: RftdError) -> str:
    """Returns the error as the reason of a finding: code, fault, fix."""
    return f"{error.code}: {error.what}" + (f"; fix: {error.fix}" if error.fix else "")
