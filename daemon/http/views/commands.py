"""The commands that change an experiment's life: their bodies, what they answer, and what each does."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.memory import MemoryRow, rows_of
from rftd.daemon.http.views.route import MOST, NAME_CHARACTERS, Commanded, Daemon, Name, command
from rftd.ops.errors import UsageError

if TYPE_CHECKING:
    from rftd.daemon.run.operations import Accepted, Done

MOST_PRIORITY: Final = 1_000_000
"""The largest priority of an experiment, either way, as in an experiment file."""
MOST_CHARACTERS: Final = 1000
_PATH_CHARACTERS: Final = 4096
KEEPING_TIMEOUT_S: Final = 3600.0
"""The longest archive, restore or removal: checkpoints are copied, and read again to check the copy."""
_TAG: Final = "experiments"

Text = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
Said = Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")]
"""A text that is not blank."""
PathText = Annotated[str, Meta(max_length=_PATH_CHARACTERS)]


class Submit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments and /v1/experiments/check."""

    config: dict[str, Any]
    """The experiment file, normalised by the client: `${...}` resolved there, absolute paths, no secret as a value."""
    labels: dict[str, str] = {}


class Fork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/{name}/fork."""

    at_step: Annotated[int, Meta(ge=0, le=MOST)]
    """The weight version from which the fork goes on; 0 is the base model."""
    set: list[str] = []
    """`key=value` overrides of the parent's configuration, the value as YAML; paths absolute, a `${...}` stays text."""
    name: Annotated[str, Meta(max_length=NAME_CHARACTERS)] | None = None
    """The fork's name; PARENT-fork-STEP if it is left out."""
    labels: dict[str, str] = {}
    """Labels that are added to the parent's."""


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of pause, resume and cancel; it may be missing."""

    reason: Text = ""


class Prioritize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of prioritize."""

    priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
    reason: Text = ""


class To(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of archive; it may be missing."""

    to: PathText = ""
    """A new file on the daemon's machine; else one below its data folder."""


class From(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of restore; it may be missing."""

    source: PathText = ""
    """The archive's present place, if it was moved."""


class Remove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of remove; it may be missing."""

    reason: Text = ""
    archive: bool = False
    """True: it is archived before it is removed."""


class SubmitReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment is in the log."""

    id: str
    name: str
    event: str
    """Id of its experiment.submitted."""
    position: str
    """Give it as `?after=` to a read that must see it."""
    warnings: list[str]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment would be taken in; nothing was appended."""

    name: str
    """Its name; with a time stamp where its folder is in use and the file allows another."""
    job_dir: str
    warnings: list[str]
    memory: list[MemoryRow]
    """The memory that workers are expected to take of their devices, with the longest texts."""


class ForkReceipt(SubmitReceipt, frozen=True, kw_only=True):
    """The fork is in the log."""

    parent: str
    """The experiment whose history it shares."""
    at_step: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The command is in the log."""

    id: str
    """The experiment's id."""
    event: str
    position: str


def receipt_of(experiment: UUID, done: Done) -> Receipt:
    """The answer to a command that took effect."""
    return Receipt(id=str(experiment), event=str(done.event), position=str(done.position))


def of_file(content: dict[str, Any]) -> Submit:
    """The submission that an experiment file alone is."""
    return Submit(config=content)


@command("/v1/experiments", Submit, SubmitReceipt, tag=_TAG, of_file=of_file, submits=True)
async def submit(daemon: Commanded, body: Submit, key: UUID) -> SubmitReceipt:
    """Submit an experiment. It is validated, and in the log when this answers."""
    accepted = await daemon.operations.submit(_with_labels(body), request_id=key)
    return SubmitReceipt(**_taken_in(accepted))


# A path of its own and no parameter of the submission's: an unknown parameter is ignored, and what somebody wanted
# checked would be submitted.
@command("/v1/experiments/check", Submit, CheckReport, tag=_TAG, of_file=of_file, dry=True)
async def check(daemon: Daemon, body: Submit) -> CheckReport:
    """Check an experiment exactly as a submission of it would be checked, and append nothing."""
    spec = await daemon.operations.check(_with_labels(body))
    return CheckReport(name=spec.name, job_dir=spec.job_dir, warnings=list(spec.warnings), memory=rows_of(spec.memory))


@command("/v1/experiments/{name}/fork", Fork, ForkReceipt, tag=_TAG, submits=True)
async def fork(daemon: Daemon, body: Fork, key: UUID, name: Name) -> ForkReceipt:
    """A new experiment that shares this one's history up to a step and goes on from there, with changes."""
    forked = await daemon.operations.fork(
        await daemon.find(name),
        at_step=body.at_step,
        overrides=body.set,
        name=body.name,
        labels=body.labels,
        request_id=key,
    )
    return ForkReceipt(**_taken_in(forked), parent=str(forked.parent), at_step=forked.at_step)


@command("/v1/experiments/{name}/pause", Reason, Receipt, tag=_TAG, optional=True)
async def pause(daemon: Commanded, body: Reason, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    return receipt_of(id, await daemon.operations.pause(id, reason=body.reason, request_id=key))


@command("/v1/experiments/{name}/resume", Reason, Receipt, tag=_TAG, optional=True)
async def resume(daemon: Commanded, body: Reason, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    return receipt_of(id, await daemon.operations.resume(id, reason=body.reason, request_id=key))


@command("/v1/experiments/{name}/cancel", Reason, Receipt, tag=_TAG, optional=True)
async def cancel(daemon: Commanded, body: Reason, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    return receipt_of(id, await daemon.operations.cancel(id, reason=body.reason, request_id=key))


@command("/v1/experiments/{name}/prioritize", Prioritize, Receipt, tag=_TAG)
async def prioritize(daemon: Commanded, body: Prioritize, key: UUID, name: Name) -> Receipt:
    """Change the priority of an experiment: of those that wait for their turn, the highest goes first."""
    id = await daemon.find(name)
    done = await daemon.operations.prioritize(id, priority=body.priority, reason=body.reason, request_id=key)
    return receipt_of(id, done)


@command("/v1/experiments/{name}/archive", To, Receipt, tag=_TAG, optional=True, timeout_s=KEEPING_TIMEOUT_S)
async def archive(daemon: Daemon, body: To, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    return receipt_of(id, await daemon.operations.archive(id, to=_checked_place(body.to, "to"), request_id=key))


@command("/v1/experiments/{name}/restore", From, Receipt, tag=_TAG, optional=True, timeout_s=KEEPING_TIMEOUT_S)
async def restore(daemon: Daemon, body: From, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    archive = _checked_place(body.source, "source")
    return receipt_of(id, await daemon.operations.restore(id, source=archive, request_id=key))


@command("/v1/experiments/{name}/remove", Remove, Receipt, tag=_TAG, optional=True, timeout_s=KEEPING_TIMEOUT_S)
async def remove(daemon: Daemon, body: Remove, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    done = await daemon.operations.remove(id, reason=body.reason, archive=body.archive, request_id=key)
    return receipt_of(id, done)


def _taken_in(accepted: Accepted) -> dict[str, Any]:
    return {
        "id": str(accepted.experiment),
        "name": accepted.name,
        "event": str(accepted.event),
        "position": str(accepted.position),
        "warnings": list(accepted.warnings),
    }


def _with_labels(body: Submit) -> dict[str, Any]:
    """The config with the request's labels over the file's."""
    own = body.config.get("labels")
    # Labels of a wrong kind are left for the check of the configuration, which names their line and column.
    if not body.labels or not isinstance(own, dict | None):
        return body.config
    return {**body.config, "labels": {**(own or {}), **body.labels}}


def _checked_place(path: str, field: str) -> str:
    # The daemon resolves no relative path, which would mean its own folder and not the caller's. A name alone is that
    # of an archive in its folder of archives.
    absolute = PurePosixPath(path).is_absolute() or "/" not in path
    plain = absolute and "\0" not in path and ".." not in PurePosixPath(path).parts
    if path and not plain:
        raise UsageError(f"{path[:200]!r} is no absolute path", field=field, fix="give one of the daemon's machine")
    return path
