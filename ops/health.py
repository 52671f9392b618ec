"""Liveness and readiness, as named checks, and the lines of `rftd doctor`.

*Live* means that the process should not be restarted; *ready* means that it can serve. A check that does not answer in
time has failed, so that a probe never hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from rftd.ops.errors import RftdError

CHECK_TIMEOUT_S: Final = 2.0

Check = Callable[[], Awaitable[str | None]]
"""A check answers None if all is well, a `Note` to be told, else the reason of its failure; raising is failing."""


class Note(str):
    """A reason that is told, and does not count as failing."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one check."""

    name: str
    ok: bool
    reason: str = ""
    """The reason of its failure, or the text of a note."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the doctor's report; `fix` says what to do if it is not `ok`."""

    check: str
    status: Literal["ok", "warn", "fail"]
    what: str
    fix: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of all checks of one kind."""

    ok: bool
    checks: tuple[Finding, ...]


class Health:
    """The checks of one daemon; parts add theirs while it is being wired."""

    def __init__(self, *, timeout_s: float = CHECK_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def add(self, name: str, check: Check, *, live: bool = False) -> None:
        """Adds a check of readiness, or of liveness too: only where a restart would help."""
        assert name not in self._ready, name
        self._ready[name] = check
        if live:
            self._live[name] = check

    async def live(self) -> Verdict:
        """The verdict on liveness: `ok` if the process should go on as it is."""
        return await self._run(self._live)

    async def ready(self) -> Verdict:
        """The verdict on readiness: `ok` if requests can be served."""
        return await self._run(self._ready)

    async def _run(self, checks: dict[str, Check]) -> Verdict:
        # At once, each with its own time-out: a probe takes as long as the slowest check, and not as their sum.
        findings = await asyncio.gather(*(self._ask(name, check) for name, check in checks.items()))
        return Verdict(ok=all(finding.ok for finding in findings), checks=tuple(findings))

    async def _ask(self, name: str, check: Check) -> Finding:
        try:
            async with asyncio.timeout(self._timeout_s):
                reason = await check()
        except TimeoutError:
            reason = f"no answer within {self._timeout_s:g} s"
        except RftdError as error:
            reason = said(error)
        except Exception as error:  # a check that breaks is a finding, not an outage of the probe
            reason = f"{type(error).__name__}: {error}"
        return Finding(name=name, ok=reason is None or isinstance(reason, Note), reason=str(reason or ""))


def said(error: RftdError) -> str:
    """The error as the reason of a finding: code, what is wrong, what to do."""
    return f"{error.code}: {error.what}" + (f"; fix: {error.fix}" if error.fix else "")
