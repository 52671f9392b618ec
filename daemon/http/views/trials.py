"""Looks at a file not yet submitted: a veRL script as a file, its first rows and prompt, a tried rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from rftd.daemon.http.views import experiments
from rftd.daemon.http.views.problem import ProblemPart
from rftd.daemon.http.views.route import MOST, NAME_CHARACTERS, Daemon, command
from rftd.ops.errors import ConflictError
from rftd.workers.rollout.tried_rollout import FirstRows, TriedRollout

if TYPE_CHECKING:
    from rftd.streams.spec.spec import ExperimentSpec

_TAG: Final = "experiments"
"""Chapter of the OpenAPI document with these routes."""
_SCRIPT_CHARACTERS: Final = 1 << 17
"""Maximum number of characters in a script, as for the command line."""
_CHOICES: Final = 200
"""Maximum number of choices about a script."""
MOST_ROWS: Final = 20
"""Maximum number of rows in one look."""
_TIMEOUT_S: Final = 420.0
"""Longest time of a tried rollout in seconds, with the check of its file."""

Assumed = Annotated[str, Meta(max_length=4096, pattern=r"^([A-Za-z_]\w*|[1-9])=")]
"""A variable of a script with its value, `NAME=VALUE`."""
Lines = Annotated[list[Annotated[int, Meta(ge=1, le=MOST)]], Meta(max_length=_CHOICES)]
"""Numbers of lines in a script, from 1."""
TasksetName = Annotated[str, Meta(max_length=NAME_CHARACTERS)]
"""Name of a taskset, training or held out; empty: the first taskset with a file."""


class VerlScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/import-verl: a script or a Hydra file as text, and choices about it."""

    text: Annotated[str, Meta(max_length=_SCRIPT_CHARACTERS)]
    """The script or the file; never run, and no file named in it is read."""
    kind: Literal["script", "hydra"] = "script"
    """`script` for a shell script, `hydra` for a resolved configuration."""
    sync_offset: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Steps that explorers are ahead, as `--sync-offset`."""
    assume: Annotated[list[Assumed], Meta(max_length=_CHOICES)] = []
    """Values of variables, each `NAME=VALUE`, as given to `--assume`."""
    take: Lines = []
    """Lines in branches to take, as `--take`."""
    skip: Lines = []
    """Lines in branches not to take, as `--skip`."""


class ImportedKey(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one key of a script."""

    outcome: str
    """Outcome of the key's conversion, such as mapped or dropped."""
    text: str
    """The line of the report of `rftd import-verl`."""


class ImportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment file made from a script, with `???` for each value left to a person."""

    text: str
    """The experiment file as YAML; empty if there are errors."""
    lines: list[ImportedKey]
    """One line for each key of the veRL run, saying what became of the key."""
    errors: list[ProblemPart]
    """Every error of `rftd import-verl`; then the text is empty."""


class Look(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/first-rows: an experiment file, and the rows wanted."""

    config: dict[str, Any]
    """Configuration of the experiment file to look at."""
    taskset: TasksetName = ""
    """Name of the taskset; empty: the first taskset with a file."""
    row: Annotated[int, Meta(ge=0, le=MOST)] = 0
    """First row to read, from 0."""
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 5
    """Number of rows to read."""


class TriedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/try: an experiment file, and the row to answer."""

    config: dict[str, Any]
    """Configuration of the experiment file to try."""
    taskset: TasksetName = ""
    """Name of the taskset; empty: the first taskset with a file."""
    row: Annotated[int, Meta(ge=0, le=MOST)] = 0
    """Row of the taskset, from 0."""
    seed: Annotated[int, Meta(ge=0, le=MOST)] = 0
    """Seed of the sampling: another seed draws other answers."""


@command(
    "/v1/experiments/import-verl", VerlScript, ImportedFile, tag=_TAG, name="import_verl", summary="Import", dry=True
)
async def import_verl(daemon: Daemon, body: VerlScript) -> ImportedFile:
    """Make an experiment file of a veRL script or Hydra file, by its text alone; append nothing."""
    import asyncio  # not above: the command line imports this module

    return await asyncio.to_thread(_imported, body)


@command("/v1/experiments/first-rows", Look, FirstRows, tag=_TAG, name="first_rows", summary="First rows", dry=True)
async def first_rows(daemon: Daemon, body: Look) -> FirstRows:
    """Check an experiment file, and read rows of a taskset and the first prompt; append nothing."""
    spec = await daemon.operations.check(body.config)
    return await daemon.trials.first_rows(spec, body.taskset or None, body.row, body.rows)


@command(
    "/v1/experiments/try",
    TriedFile,
    TriedRollout,
    tag=_TAG,
    name="try_file",
    summary="Try",
    timeout_s=_TIMEOUT_S,
    dry=True,
    submits=True,
)
async def try_file(daemon: Daemon, body: TriedFile) -> TriedRollout:
    """Run one rollout of one row by the model as it is; append nothing. Counts as a submission of the token."""
    spec = await daemon.operations.check(body.config)
    await _check_device(daemon, spec)
    from rftd.daemon.run.supervisor.worker_orders import variables_of

    variables = variables_of("explorer", spec)
    return await daemon.trials.rollout(spec, body.taskset or None, body.row, body.seed, variables)


async def _check_device(daemon: Daemon, spec: ExperimentSpec) -> None:
    """Raises ConflictError if the rollout needs this machine's accelerator while an experiment is running or paused."""
    import asyncio

    from rftd.workers.devices.discovery import find_host
    from rftd.workers.rollout.trial import computes_on_device

    if not computes_on_device(spec) or (await asyncio.to_thread(find_host)).no_gpu:
        return
    states = (await experiments.listed.work(daemon, limit=1)).states
    if states.get("running", 0) + states.get("paused", 0):
        fix = "wait for its end, or run `rftd try FILE` on another machine"
        raise ConflictError("an experiment under way holds the accelerator of this machine", fix=fix)


def _imported(body: VerlScript) -> ImportedFile:
    """Imports a text without any of the files named in it. Blocks."""
    from importlib import import_module

    from rftd.daemon.cli.output.failure import parts
    from rftd.daemon.config.issue import ConfigErrors

    assumed = dict(text.split("=", 1) for text in body.assume)
    # By name: nothing of the core depends on another project's files.
    import_text = import_module("rftd.daemon.config.verl.importing").import_text
    try:
        imported = import_text(
            body.text, body.kind, sync_offset=body.sync_offset, assumed=assumed, taken=body.take, skipped=body.skip
        )
    except ConfigErrors as errors:
        faults = [
            ProblemPart(code=fault.code, what=fault.what, field=fault.field, where=fault.where, fix=fault.fix)
            for fault in parts(errors)
        ]
        return ImportedFile(text="", lines=[], errors=faults)
    lines = [ImportedKey(outcome=line.outcome, text=str(line)) for line in imported.lines]
    return ImportedFile(text=imported.text, lines=lines, errors=[])
