"""The one tree of errors.

    RftdError
    ├── UsageError            the caller's input: exit 2, HTTP 422
    │   ├── ConfigError       an experiment file, with file, line, column and field
    │   ├── DataError         a model or dataset that is missing, empty or malformed
    │   │   └── RowError      a row of one that is as it was accepted
    │   └── ArchiveError      an export that is damaged, cut off, or of another format
    ├── NotFoundError         exit 3, HTTP 404
    ├── UnreachableError      the daemon or its log cannot be reached: exit 4, HTTP 503
    ├── ConflictError         an illegal transition, a second daemon: exit 5, HTTP 409
    │   └── ReusedKeyError    an idempotency key that was used for something else: HTTP 422
    ├── WaitTimeoutError      exit 6, HTTP 504
    ├── LogError              the event log: exit 70, HTTP 503
    │   ├── LogCorruptError   a record does not match its checksum or chain
    │   ├── LogLossError      a remembered head is gone
    │   ├── LogFullError      no space: read-only until there is
    │   ├── CodecError        a record that cannot be decoded or is over a limit
    │   └── FencedError       a newer owner of the role exists
    └── WorkError             a rollout, a reward, a step
        ├── DiskFullError     weights or a checkpoint found no space
        ├── DeviceMemoryError  an engine would find no memory
        ├── RankError         a process of a trainer engine is gone, hangs or differs
        ├── RolloutError
        └── TrainError

A message says what, where, the value and what to do; `code` is stable and documented in docs/errors.md.
"""

from __future__ import annotations

from typing import ClassVar


class RftdError(Exception):
    """An operating error that a person can act on; programmer errors are assertions."""

    code: ClassVar[str] = "RFTD-000"
    exit_status: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(
        self, what: str, *, where: str | None = None, field: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.field = field
        self.fix = fix

    def __str__(self) -> str:
        parts = [f"error[{self.code}]" + (f" {self.field}:" if self.field else "") + f" {self.what}"]
        if self.where:
            parts.append(f"  --> {self.where}")
        if self.fix:
            parts.append(f"  fix: {self.fix}")
        return "\n".join(parts)


class UsageError(RftdError):
    """The command, request or flag is wrong; nothing was done."""

    code = "RFTD-USE-001"
    exit_status = 2
    http_status = 422


class ConfigError(UsageError):
    """The experiment file is malformed, contradictory or too large."""

    code = "RFTD-CFG-001"


class DataError(UsageError):
    """A model or dataset named by the experiment is missing, empty or malformed."""

    code = "RFTD-DAT-001"


class RowError(DataError):
    """A row of a dataset that is as it was accepted cannot be trained: no restart and no restoring mends that."""

    code = "RFTD-DAT-002"


class ArchiveError(UsageError):
    """An export of an experiment is damaged, cut off, inconsistent or of another format; nothing was imported."""

    code = "RFTD-ARC-001"


class NotFoundError(RftdError):
    """No experiment, event or artifact has that name."""

    code = "RFTD-NOF-001"
    exit_status = 3
    http_status = 404


class UnreachableError(RftdError):
    """The daemon or its log does not answer."""

    code = "RFTD-NET-001"
    exit_status = 4
    http_status = 503


class ConflictError(RftdError):
    """The state does not allow it: an illegal transition, or a second daemon on one folder."""

    code = "RFTD-CON-001"
    exit_status = 5
    http_status = 409


class ReusedKeyError(ConflictError):
    """A request id (`Idempotency-Key`) came again with another command or body; only the first one took effect.

    422 and not 409 is what draft-ietf-httpapi-idempotency-key-header-06, section 2.7, says of another payload.
    """

    code = "RFTD-CON-002"
    http_status = 422


class WaitTimeoutError(RftdError):
    """The thing waited for did not happen in time; nothing was undone."""

    code = "RFTD-TIM-001"
    exit_status = 6
    http_status = 504


class LogError(RftdError):
    """The event log refused or failed."""

    code = "RFTD-LOG-001"
    exit_status = 70
    http_status = 503


class LogCorruptError(LogError):
    """A record below the head does not match its checksum or the hash chain."""

    code = "RFTD-LOG-002"


class LogLossError(LogError):
    """A position that a survivor remembers as acknowledged is missing or different."""

    code = "RFTD-LOG-003"


class LogFullError(LogError):
    """No space is left for an append; what was acknowledged is safe."""

    code = "RFTD-LOG-004"
    http_status = 507


class CodecError(LogError):
    """Bytes that are no record of ours, or a record over a limit."""

    code = "RFTD-LOG-005"


class FencedError(LogError):
    """A newer owner of the role has fenced this writer; it must stop."""

    code = "RFTD-LOG-006"


class WorkError(RftdError):
    """A unit of work failed."""

    code = "RFTD-WRK-001"


class RolloutError(WorkError):
    """A rollout failed: its workflow, its reward or its engine."""

    code = "RFTD-WRK-002"


class RolloutTimeoutError(RolloutError):
    """A rollout did not end within its `max_timeout`."""

    code = "RFTD-WRK-003"


class DiskFullError(WorkError):
    """A worker's files found no space; it is started again until there is some."""

    code = "RFTD-WRK-006"


class DeviceMemoryError(WorkError):
    """A device has less free memory than an engine needs at least; nothing was loaded."""

    code = "RFTD-WRK-011"


class RankError(WorkError):
    """A process of a trainer engine ended, does not answer, or differs from the others: all of them are given up."""

    code = "RFTD-WRK-012"


class DeadlyTaskError(WorkError):
    """Workers die of a task: each time that it ran with nothing else beside it, the process ended."""

    code = "RFTD-WRK-007"


class OverRolloutError(RolloutError):
    """A task was given up: enough tasks of its explore step were done, and the wait was over."""

    code = "RFTD-WRK-008"


class WeightsElsewhereError(WorkError):
    """Weights lie in the memory of another machine: a worker here can never load them."""

    code = "RFTD-WRK-010"


class StaleFlightError(RolloutError):
    """A task was given up: its rollouts began on weights so old that its stage's policy would train none of them."""

    code = "RFTD-WRK-009"


class TrainError(WorkError):
    """A training step cannot be completed."""

    code = "RFTD-WRK-004"


class NonFiniteLossError(TrainError):
    """The loss or the gradient is NaN or infinite; the weights were not touched."""

    code = "RFTD-WRK-005"
