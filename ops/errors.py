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

A message says what, where, the value and what to do; `code` is stable and documented in docs/errors.md, with the
`remedy`: what helps whoever meets the code, whatever the message says of the case at hand.
"""

from __future__ import annotations

from typing import ClassVar


class RftdError(Exception):
    """An operating error that a person can act on; programmer errors are assertions."""

    code: ClassVar[str] = "RFTD-000"
    remedy: ClassVar[str] = "Read the message; every error that has a code of its own is below."
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
    remedy = "See `--help` of the verb."
    exit_status = 2
    http_status = 422


class ConfigError(UsageError):
    """The experiment file is malformed, contradictory or too large."""

    code = "RFTD-CFG-001"
    remedy = "Correct what the message names; `rftd config check FILE` shows everything at once."


class DataError(UsageError):
    """A model or dataset named by the experiment is missing, empty or malformed."""

    code = "RFTD-DAT-001"
    remedy = "Correct the path, the split or the keys of `format`; the message names the file and the row."


class RowError(DataError):
    """A row of a dataset that is as it was accepted cannot be trained: no restart and no restoring mends that."""

    code = "RFTD-DAT-002"
    remedy = "Correct the row that the message names, or leave it out, and submit a new experiment."


class ArchiveError(UsageError):
    """An export of an experiment is damaged, cut off, inconsistent or of another format; nothing was imported."""

    code = "RFTD-ARC-001"
    remedy = "Copy the file again, or export anew with `rftd export`; import with the release that wrote it."


class NotFoundError(RftdError):
    """No experiment, event or artifact has that name."""

    code = "RFTD-NOF-001"
    remedy = "See `rftd ls` for the names."
    exit_status = 3
    http_status = 404


class UnreachableError(RftdError):
    """The daemon or its log does not answer."""

    code = "RFTD-NET-001"
    remedy = "Start one with `rftd serve`, or name its address with `--server`."
    exit_status = 4
    http_status = 503


class ConflictError(RftdError):
    """The state does not allow it: an illegal transition, or a second daemon on one folder."""

    code = "RFTD-CON-001"
    remedy = "See `rftd get NAME` for its state; end the other daemon, or give another `--data` or `--port`."
    exit_status = 5
    http_status = 409


class ReusedKeyError(ConflictError):
    """A request id (`Idempotency-Key`) came again with another command or body; only the first one took effect.

    422 and not 409 is what draft-ietf-httpapi-idempotency-key-header-06, section 2.7, says of another payload.
    """

    code = "RFTD-CON-002"
    remedy = "Send a new key, or none; the message says what this one was used for, and when."
    http_status = 422


class WaitTimeoutError(RftdError):
    """The thing waited for did not happen in time; nothing was undone."""

    code = "RFTD-TIM-001"
    remedy = "Wait longer with `--timeout`, or look again with `rftd watch NAME`."
    exit_status = 6
    http_status = 504


class LogError(RftdError):
    """The event log refused or failed."""

    code = "RFTD-LOG-001"
    remedy = "See the daemon's log; nothing that was acknowledged is gone."
    exit_status = 70
    http_status = 503


class LogCorruptError(LogError):
    """A record below the head does not match its checksum or the hash chain."""

    code = "RFTD-LOG-002"
    remedy = "Restore the whole data folder from a backup; the disk or something else changed the file."


class LogLossError(LogError):
    """A position that a survivor remembers as acknowledged is missing or different."""

    code = "RFTD-LOG-003"
    remedy = "Put the newest log back, or go on without what was lost: `rftd serve --accept-loss NAME`."


class LogFullError(LogError):
    """No space is left for an append; what was acknowledged is safe."""

    code = "RFTD-LOG-004"
    remedy = "Free some space; writers go on by themselves."
    http_status = 507


class CodecError(LogError):
    """Bytes that are no record of ours, or a record over a limit."""

    code = "RFTD-LOG-005"
    remedy = "Use one release of rftd for all processes; a record over 2 MiB must be made smaller."


class FencedError(LogError):
    """A newer owner of the role has fenced this writer; it must stop."""

    code = "RFTD-LOG-006"
    remedy = "Nothing: the newer owner goes on. If you did not start one, look for a second daemon."


class WorkError(RftdError):
    """A unit of work failed."""

    code = "RFTD-WRK-001"
    remedy = "See the worker's log: `rftd logs NAME`."


class RolloutError(WorkError):
    """A rollout failed: its workflow, its reward or its engine."""

    code = "RFTD-WRK-002"
    remedy = "Correct the workflow, the reward or the row that the message names."


class RolloutTimeoutError(RolloutError):
    """A rollout did not end within its `max_timeout`."""

    code = "RFTD-WRK-003"
    remedy = "Raise `explorer.max_timeout`, or find out what the workflow waits for."


class DiskFullError(WorkError):
    """A worker's files found no space; it is started again until there is some."""

    code = "RFTD-WRK-006"
    remedy = "Free some space; the worker is started again by itself."


class DeviceMemoryError(WorkError):
    """A device has less free memory than an engine needs at least; nothing was loaded."""

    code = "RFTD-WRK-011"
    remedy = "Free memory on the device, or do what the message names; the run is tried again by itself."


class RankError(WorkError):
    """A process of a trainer engine ended, does not answer, or differs from the others: all of them are given up."""

    code = "RFTD-WRK-012"
    remedy = (
        "Nothing where a process was killed: all are started again. Else read the rank's last lines in the message; "
        "raise `trainer.engine_args.rank_timeout_s` for steps that only take long."
    )


class DeadlyTaskError(WorkError):
    """Workers die of a task: each time that it ran with nothing else beside it, the process ended."""

    code = "RFTD-WRK-007"
    remedy = "Shorten or remove the row that the message names, or give workers more memory; then `rftd dlq retry ID`."


class OverRolloutError(RolloutError):
    """A task was given up: enough tasks of its explore step were done, and the wait was over."""

    code = "RFTD-WRK-008"
    remedy = "Nothing is wrong: lower `explorer.over_rollout.ratio` or raise its `wait_after_min` to lose less."


class WeightsElsewhereError(WorkError):
    """Weights lie in the memory of another machine: a worker here can never load them."""

    code = "RFTD-WRK-010"
    remedy = "Set `synchronizer.sync_method: checkpoint`, with a job folder that every machine sees."


class StaleFlightError(RolloutError):
    """A task was given up: its rollouts began on weights so old that its stage's policy would train none of them."""

    code = "RFTD-WRK-009"
    remedy = "Nothing is wrong: raise the staleness bound, or let fewer batches be in flight, to lose less."


class TrainError(WorkError):
    """A training step cannot be completed."""

    code = "RFTD-WRK-004"
    remedy = "See the trainer's log: `rftd logs NAME --role trainer`."


class NonFiniteLossError(TrainError):
    """The loss or the gradient is NaN or infinite; the weights were not touched."""

    code = "RFTD-WRK-005"
    remedy = "Lower the learning rate, or look at the batch: `rftd experiences ls NAME --step N`."
