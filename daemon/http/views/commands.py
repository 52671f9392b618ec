"""The commands changing an experiment's life: their bodies, receipts and effects."""

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
    from rftd.streams.spec.spec import ExperimentSpec, StageSpec

MOST_PRIORITY: Final = 1_000_000
"""Largest absolute priority of an experiment, as in an experiment file."""
MOST_CHARACTERS: Final = 1000
"""Maximum number of characters in a short text of a request."""
_PATH_CHARACTERS: Final = 4096
"""Maximum number of characters in a path of a request."""
KEEPING_TIMEOUT_S: Final = 3600.0
"""Longest archive, restore or removal in seconds: checkpoints are copied, and read again to check the copy."""
_TAG: Final = "experiments"
"""Chapter of the OpenAPI document with these routes."""
_PROMPT_TOKEN_BYTES: Final = 4
"""Bytes in the log of a prompt's token: its id."""
_ANSWER_TOKEN_BYTES: Final = 9
"""Bytes in the log of an answer's token, uncompressed: id, mask and log-probability."""

Text = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
"""Short text of a request, at most `MOST_CHARACTERS` characters."""
Said = Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")]
"""Text with at least one non-blank character."""
PathText = Annotated[str, Meta(max_length=_PATH_CHARACTERS)]
"""Path in a request, at most `_PATH_CHARACTERS` characters."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments and /v1/experiments/check: a file and additional labels."""

    config: dict[str, Any]
    """The experiment file, normalised by the client: `${...}` resolved there, absolute paths, no secret as a value."""
    labels: dict[str, str] = {}
    """Labels of the experiment, added to those of the file."""


class Fork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/{name}/fork: the step, and the changes to the parent's configuration."""

    at_step: Annotated[int, Meta(ge=0, le=MOST)]
    """Weight version at which the fork continues; 0 is the base model."""
    set: list[str] = []
    """`key=value` overrides of the parent's configuration, the value as YAML; paths absolute, a `${...}` stays text."""
    name: Annotated[str, Meta(max_length=NAME_CHARACTERS)] | None = None
    """Name of the fork; default: PARENT-fork-STEP."""
    labels: dict[str, str] = {}
    """Labels added to the parent's."""


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The optional body of pause, resume and cancel: a reason kept with the event."""

    reason: Text = ""
    """Reason of the command in words, recorded with its event."""


class Prioritize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of prioritize: the new priority, and a reason kept with the event."""

    priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
    """The new priority; the highest starts first."""
    reason: Text = ""
    """Reason of the command in words, recorded with its event."""


class To(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The optional body of archive: the file to write."""

    to: PathText = ""
    """New file on the daemon's machine; default: a file below its data folder."""


class From(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The optional body of restore: the archive to read."""

    source: PathText = ""
    """Present path of the archive, if it was moved."""


class Remove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The optional body of remove: the reason, and whether to archive first."""

    reason: Text = ""
    """Reason of the command in words, recorded with its event."""
    archive: bool = False
    """True: the experiment is archived before its removal."""


class SubmitReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment is in the log."""

    id: str
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    event: str
    """Id of the experiment.submitted event."""
    position: str
    """Position for `?after=`, for reads that must see the experiment."""
    warnings: list[str]
    """Warnings about the experiment file."""


class StageCost(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one stage, if no task is repeated and none is left out."""

    stage: str
    """Name of the stage."""
    steps: int
    """Number of steps of the stage."""
    rollouts: int
    """Rollouts of training tasks, dropped ones not counted."""
    response_tokens: int
    """Tokens drawn for them at most, if every answer has the greatest length."""
    evaluations: int
    """Evaluations of each held-out taskset."""
    evaluation_rows: int
    """Answers to held-out rows in all, repeated tries included."""
    checkpoints: int
    """Checkpoints saved; fewer are kept at a time if the file says so."""
    checkpoints_kept: int
    """Number of checkpoints kept at a time."""
    weights_bytes: int | None
    """Size of the trained weights in memory; null if unknown."""
    checkpoints_bytes: int | None
    """Disk for the kept checkpoints, each the trained weights with the optimizer's moments; null if unknown."""
    log_bytes: int
    """Tokens, masks and log-probabilities in the log at most, if every prompt and answer has the greatest length."""


def cost_of(spec: ExperimentSpec) -> list[StageCost]:
    """Returns the work of each stage of a specification."""
    return [_stage_cost(spec, stage) for stage in spec.stages]


def _stage_cost(spec: ExperimentSpec, stage: StageSpec) -> StageCost:
    """Returns the rollouts, tokens, evaluations and bytes of a stage, estimated from the specification alone."""
    if stage.kind == "explore":
        rollouts = stage.collect_groups * stage.algorithm.repeat_times
    else:
        rollouts = stage.total_steps * stage.experiences_per_step
    answer_tokens = stage.model.max_response_tokens
    interval = stage.eval_interval
    between = (stage.total_steps - 1) // interval if interval else 0
    evaluations = between + stage.eval_on_startup + stage.eval_at_end if stage.evals else 0
    saved = stage.total_steps // stage.trainer.save_interval if stage.trainer.save_interval else 0
    checkpoints = max(saved, 1) if stage.total_steps else 0
    from rftd.streams.spec.engines import MOMENTS

    rows = [row for row in spec.memory if row.stage == stage.name and row.role == "trainer"]
    # Of all devices together: each has a share of a model that is spread.
    sizes = {
        what: sum(need.size_bytes * row.workers for row in rows for need in row.needs if need.what == what)
        for what in ("weights", MOMENTS)
    }
    weights = next((need.size_bytes for row in rows for need in row.needs if need.what == "weights"), None)
    rollout_bytes = _PROMPT_TOKEN_BYTES * stage.model.max_prompt_tokens + _ANSWER_TOKEN_BYTES * answer_tokens
    checkpoints_kept = min(checkpoints, stage.trainer.max_checkpoints_to_keep or checkpoints)
    return StageCost(
        stage=stage.name,
        steps=stage.total_steps,
        rollouts=rollouts,
        response_tokens=rollouts * answer_tokens,
        evaluations=evaluations,
        evaluation_rows=evaluations * sum(taskset.rows * taskset.repeat_times for taskset in stage.evals),
        checkpoints=checkpoints,
        checkpoints_kept=checkpoints_kept,
        weights_bytes=weights,
        checkpoints_bytes=None if weights is None else checkpoints_kept * sum(sizes.values()),
        log_bytes=rollouts * rollout_bytes,
    )


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment would be accepted as described here; nothing was appended."""

    name: str
    """Name of the experiment; with a time stamp if its folder is in use and the file allows another one."""
    job_dir: str
    """Folder that the experiment would get, on the daemon's machine."""
    warnings: list[str]
    """Warnings about the experiment file."""
    memory: list[MemoryRow]
    """Expected memory of workers on their devices, with the longest texts."""
    resolved: dict[str, Any]
    """The effective experiment: every default and argument, and the figures derived from them under `derived`."""
    cost: list[StageCost]
    """Work of each stage, if no task is repeated and none is left out."""


class ForkReceipt(SubmitReceipt, frozen=True, kw_only=True):
    """The fork is in the log."""

    parent: str
    """The experiment sharing its history with the fork."""
    at_step: int
    """Weight version at which the fork continues."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The command is in the log."""

    id: str
    """Id of the experiment."""
    event: str
    """Id of the event written for the command."""
    position: str
    """Position for `?after=`, for reads that must see the effect."""


def receipt_of(experiment: UUID, done: Done) -> Receipt:
    """Builds the answer to a command in effect: the experiment, the event and its position."""
    return Receipt(id=str(experiment), event=str(done.event), position=str(done.position))


def of_file(content: dict[str, Any]) -> Submit:
    """Returns the submission of an experiment file without labels."""
    return Submit(config=content)


@command("/v1/experiments", Submit, SubmitReceipt, tag=_TAG, of_file=of_file, submits=True)
async def submit(daemon: Commanded, body: Submit, key: UUID) -> SubmitReceipt:
    """Submit an experiment. The answer comes once the experiment is validated and in the log."""
    accepted = await daemon.operations.submit(_with_labels(body), request_id=key)
    return SubmitReceipt(**_receipt_fields(accepted))


# A separate path and no parameter of the submission: an unknown parameter would be ignored, and an experiment meant
# only for a check would be submitted.
@command("/v1/experiments/check", Submit, CheckReport, tag=_TAG, of_file=of_file, dry=True)
async def check(daemon: Daemon, body: Submit) -> CheckReport:
    """Check an experiment exactly as a submission would, and append nothing."""
    spec = await daemon.operations.check(_with_labels(body))
    # Late: the command line imports the bodies of commands, and neither specification nor its defaults.
    from rftd.daemon.config.effective.experiment import effective_config

    return CheckReport(
        name=spec.name,
        job_dir=spec.job_dir,
        warnings=list(spec.warnings),
        memory=rows_of(spec.memory),
        resolved=effective_config(spec),
        cost=cost_of(spec),
    )


@command("/v1/experiments/{name}/fork", Fork, ForkReceipt, tag=_TAG, submits=True)
async def fork(daemon: Daemon, body: Fork, key: UUID, name: Name) -> ForkReceipt:
    """A new experiment sharing this one's history up to a step and continuing from there, with changes."""
    forked = await daemon.operations.fork(
        await daemon.find(name),
        at_step=body.at_step,
        overrides=body.set,
        name=body.name,
        labels=body.labels,
        request_id=key,
    )
    return ForkReceipt(**_receipt_fields(forked), parent=str(forked.parent), at_step=forked.at_step)


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
    """Change the priority of an experiment: of the queued ones, the highest goes first."""
    id = await daemon.find(name)
    done = await daemon.operations.prioritize(id, priority=body.priority, reason=body.reason, request_id=key)
    return receipt_of(id, done)


@command("/v1/experiments/{name}/archive", To, Receipt, tag=_TAG, optional=True, timeout_s=KEEPING_TIMEOUT_S)
async def archive(daemon: Daemon, body: To, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    return receipt_of(id, await daemon.operations.archive(id, to=_checked_path(body.to, "to"), request_id=key))


@command("/v1/experiments/{name}/restore", From, Receipt, tag=_TAG, optional=True, timeout_s=KEEPING_TIMEOUT_S)
async def restore(daemon: Daemon, body: From, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    archive = _checked_path(body.source, "source")
    return receipt_of(id, await daemon.operations.restore(id, source=archive, request_id=key))


@command("/v1/experiments/{name}/remove", Remove, Receipt, tag=_TAG, optional=True, timeout_s=KEEPING_TIMEOUT_S)
async def remove(daemon: Daemon, body: Remove, key: UUID, name: Name) -> Receipt:
    id = await daemon.find(name)
    done = await daemon.operations.remove(id, reason=body.reason, archive=body.archive, request_id=key)
    return receipt_of(id, done)


def _receipt_fields(accepted: Accepted) -> dict[str, Any]:
    """Returns the fields common to the receipts of a submission and of a fork."""
    return {
        "id": str(accepted.experiment),
        "name": accepted.name,
        "event": str(accepted.event),
        "position": str(accepted.position),
        "warnings": list(accepted.warnings),
    }


def _with_labels(body: Submit) -> dict[str, Any]:
    """Returns the config with the request's labels over the file's."""
    file_labels = body.config.get("labels")
    # Labels of a wrong kind are left for the check of the configuration, which reports line and column.
    if not body.labels or not isinstance(file_labels, dict | None):
        return body.config
    return {**body.config, "labels": {**(file_labels or {}), **body.labels}}


def _checked_path(path: str, field: str) -> str:
    """Returns a path of a request, absolute or a plain name of an archive. Raises UsageError."""
    # The daemon resolves no relative path: it would mean the daemon's folder and not the caller's. A plain name is an
    # archive in the daemon's folder of archives.
    absolute = PurePosixPath(path).is_absolute() or "/" not in path
    plain = absolute and "\0" not in path and ".." not in PurePosixPath(path).parts
    if path and not plain:
        raise UsageError(
            f"{path[:200]!r} is no absolute path", field=field, fix="name a folder on the daemon's machine"
        )
    return path
