"""The one tree of errors; further leaves are defined beside the code raising the error.

    RftdError
    ├── UsageError            the caller's input: exit 2, HTTP 422
    │   ├── ConfigError       an experiment file, with file, line, column and field
    │   │   └── NotInstalledError  packages of an extra are not installed where they are needed
    │   ├── DataError         a model or dataset that is missing, empty or malformed
    │   │   └── RowError      a bad row of an unchanged dataset
    │   └── ArchiveError      an export that is damaged, truncated, or of another format
    ├── NotFoundError         exit 3, HTTP 404
    ├── UnreachableError      the daemon or its log cannot be reached: exit 4, HTTP 503
    ├── ConflictError         an illegal transition, a second daemon: exit 5, HTTP 409
    │   └── ReusedKeyError    an idempotency key reused for another command: HTTP 422
    ├── WaitTimeoutError      exit 6, HTTP 504
    ├── OutputError           no space for standard output or a file: exit 70
    ├── LogError              the event log: exit 70, HTTP 503
    │   ├── LogCorruptError   a record does not match its checksum or chain
    │   ├── LogLossError      a remembered head is missing
    │   │   └── OtherLogError  the experiment's folder remembers another log
    │   ├── LogFullError      no space: read-only until there is
    │   ├── CodecError        an undecodable record, or one over a limit
    │   └── FencedError       a newer owner of the role exists
    └── WorkError             a rollout, a reward, a step
        ├── DiskFullError     no space for weights or a checkpoint
        ├── DeviceMemoryError  no memory for an engine
        ├── RankError         a process of a trainer engine is gone, hangs or differs
        ├── DeadlyTaskError   a task kills its workers
        ├── PipelineError     an operator of the experience pipeline failed
        ├── WeightsElsewhereError  weights in the memory of another machine
        ├── RolloutError      a workflow, a reward or an engine
        │   ├── RolloutTimeoutError  longer than `max_timeout`
        │   ├── OverRolloutError     given up: enough other tasks are done
        │   └── StaleFlightError     given up: its weights are too old
        └── TrainError        a training step
            └── NonFiniteLossError   NaN or infinite; the weights were not touched

A message names the fault, the place, the value and a fix; `code` is stable and documented in docs/errors.md, together
with the `remedy`: general advice for the code, independent of the message of a single case.
"""

from __future__ import annotations

from typing import ClassVar

from rftd.ops import limits


class RftdError(Exception):
    """An operating error that a person can act on; programmer errors are assertions."""

    code: ClassVar[str] = "RFTD-000"
    """Stable code, documented in docs/errors.md."""
    remedy: ClassVar[str] = "Read the message; errors with a code of their own are listed below."
    """General advice for the code."""
    exit_status: ClassVar[int] = 1
    """Exit status of a command that fails with the error."""
    http_status: ClassVar[int] = 500
    """HTTP status of a request that fails with the error."""

    def __init__(
        self, what: str, *, where: str | None = None, field: str | None = None, fix: str | None = None
    ) -> None:
        """`what` is the fault, `where` the place, `field` the field of a file or request, and `fix` the advice for the
        user.
        """
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
    remedy = "Correct the field named by the message; `rftd config check FILE` shows everything at once."


class NotInstalledError(ConfigError):
    """The request needs packages of an optional extra, which are not installed where they would be used."""

    code = "RFTD-INS-001"
    remedy = (
        "Install the extra named in the message into the environment of the program that reported the error, "
        "then restart that program."
    )


class DataError(UsageError):
    """A model or dataset named by the experiment is missing, empty or malformed."""

    code = "RFTD-DAT-001"
    remedy = "Correct the path, the split or the keys of `format`; the message names the file and the row."


class RowError(DataError):
    """A row of an unchanged dataset cannot be trained; neither a restart nor a restored file fixes that."""

    code = "RFTD-DAT-002"
    remedy = "Correct the row that the message names, or leave it out, and submit a new experiment."


class ArchiveError(UsageError):
    """An export of an experiment is damaged, truncated, inconsistent or in another format; nothing was imported."""

    code = "RFTD-ARC-001"
    remedy = "Copy the file again, or repeat `rftd export`; import with the release that wrote it."


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
    """The current state does not allow this: an illegal transition, or a second daemon on one folder."""

    code = "RFTD-CON-001"
    remedy = "See `rftd get NAME` for its state; stop the other daemon, or use another `--data` or `--port`."
    exit_status = 5
    http_status = 409


class ReusedKeyError(ConflictError):
    """A request id (`Idempotency-Key`) was reused with another command or body; only the first one took effect.

    The status is 422 and not 409, as draft-ietf-httpapi-idempotency-key-header-06, section 2.7, requires.
    """

    code = "RFTD-CON-002"
    remedy = "Send a new key, or none; the message says what this key was used for, and when."
    http_status = 422


class WaitTimeoutError(RftdError):
    """The awaited change did not happen in time; nothing was undone."""

    code = "RFTD-TIM-001"
    remedy = "Wait longer with `--timeout`, or look again with `rftd watch NAME`."
    exit_status = 6
    http_status = 504


class LogError(RftdError):
    """The event log refused or failed."""

    code = "RFTD-LOG-001"
    remedy = "See the daemon's log; no acknowledged event is lost."
    exit_status = 70
    http_status = 503


class LogCorruptError(LogError):
    """A record below the head does not match its checksum or the hash chain."""

    code = "RFTD-LOG-002"
    remedy = "Restore the whole data folder from a backup; the disk or another program changed the file."


class LogLossError(LogError):
    """An acknowledged record, remembered outside the log, is missing from the log or differs."""

    code = "RFTD-LOG-003"
    remedy = "Restore the newest log, or continue without the lost records: `rftd serve --accept-loss NAME`."


class OtherLogError(LogLossError):
    """The folder of an experiment belongs to another log; nothing of the experiment is continued in this one."""

    code = "RFTD-LOG-008"
    remedy = (
        "Serve the log named in the message. If that log is no longer used, give the folder to this one: "
        "`rftd serve --take-over NAME`."
    )


class LogFullError(LogError):
    """No space is left for an append; acknowledged events are safe."""

    code = "RFTD-LOG-004"
    remedy = "Free some space; writers then continue by themselves."
    http_status = 507


class CodecError(LogError):
    """The bytes are not a valid record of rftd, or a record exceeds a limit."""

    code = "RFTD-LOG-005"
    remedy = "Use the same release of rftd for all processes; a record may have at most 2 MiB."


class FencedError(LogError):
    """A newer owner of the role has fenced this writer; it must stop."""

    code = "RFTD-LOG-006"
    remedy = "Nothing to do: the newer owner continues. If you did not start one, look for a second daemon."


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
    remedy = "Raise `explorer.max_timeout`, or find out what the workflow is waiting for."


class OutputError(RftdError):
    """Standard output or a file could not be written for lack of space."""

    code = "RFTD-OUT-001"
    remedy = "Free some space, or write to another place; then repeat the command."
    exit_status = 70


class DiskFullError(WorkError):
    """A worker had no space for its files; it is restarted until space is available."""

    code = "RFTD-WRK-006"
    remedy = "Free some space; the worker is restarted automatically."


class DeviceMemoryError(WorkError):
    """A device has less free memory than an engine needs; nothing was loaded."""

    code = "RFTD-WRK-011"
    remedy = "Free memory on the device, or follow the message; the run is retried automatically."


class RankError(WorkError):
    """A process of a trainer engine ended, does not answer, or differs from the others; all of them are ended."""

    code = "RFTD-WRK-012"
    remedy = (
        "If a process was killed, do nothing: all are restarted. Otherwise read the rank's last lines in the message; "
        "raise `trainer.engine_args.rank_timeout_s` if steps simply take long."
    )


class DeadlyTaskError(WorkError):
    """A task kills its workers: each time it ran in isolation, the process ended."""

    code = "RFTD-WRK-007"
    remedy = "Shorten or remove the row that the message names, or give workers more memory; then `rftd dlq retry ID`."


class OverRolloutError(RolloutError):
    """A task was given up: enough tasks of its explore step were done, and the wait had ended."""

    code = "RFTD-WRK-008"
    remedy = "Nothing is wrong. Lower `explorer.over_rollout.ratio` or raise its `wait_after_min` to lose fewer tasks."


class PipelineError(WorkError):
    """An operator of the experience pipeline failed on a group, or its process ended each time."""

    code = "RFTD-WRK-013"
    remedy = "Correct the operator that the message names; then `rftd dlq retry ID`, which rolls the task out again."


class WeightsElsewhereError(WorkError):
    """Weights are in the memory of another machine, so a worker here can never load them."""

    code = "RFTD-WRK-010"
    remedy = "Set `synchronizer.sync_method: checkpoint`, with a job folder that every machine can access."


class StaleFlightError(RolloutError):
    """A task was given up: its rollouts began on weights so old that its stage's policy would train none of them."""

    code = "RFTD-WRK-009"
    remedy = "Nothing is wrong. Raise the staleness bound, or allow fewer batches in flight, to lose fewer tasks."


class TrainError(WorkError):
    """A training step cannot be completed."""

    code = "RFTD-WRK-004"
    remedy = "See the trainer's log: `rftd logs NAME --role trainer`."


class NonFiniteLossError(TrainError):
    """The loss or the gradient is NaN or infinite; the weights were not touched."""

    code = "RFTD-WRK-005"
    remedy = "Lower the learning rate, or look at the batch: `rftd experiences ls NAME --step N`."


def explain(error: BaseException) -> str:
    """Returns the error as a bounded text for an event: fault, place and fix, or class and message."""
    if isinstance(error, RftdError):
        parts = [error.what, f"at {error.where}" if error.where else "", f"fix: {error.fix}" if error.fix else ""]
        text = "; ".join(filter(None, parts))
    else:
        text = f"{type(error).__name__}: {error}"
    # Bounded: the text becomes part of an event, and errors of libraries may quote whole tensors.
    return text[: limits.ERROR_TEXT_CHARS]
