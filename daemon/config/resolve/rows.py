"""Rows trained without rollouts: rows of a `train` stage, or expert rows mixed with experiences."""

from __future__ import annotations

import difflib
from math import ceil
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Issue, Notes, Unsupported
from rftd.daemon.config.resolve.task_pipeline import pending_inputs
from rftd.daemon.config.schema.buffer import ExperienceBuffer, Taskset
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import AlgorithmSpec, TasksetSpec
from rftd.workers.datasets.recorded import RECORDED
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition
from rftd.workers.learning.losses.registry import compares_pairs

_ARGS: FieldPath = ("algorithm", "sample_strategy_args")
"""Field of the sample strategy's arguments."""
_BUFFERS: FieldPath = ("buffer", "trainer_input", "auxiliary_buffers")
"""Section of the auxiliary buffers."""

VARIABLE: Final = "env://"
"""Prefix of a database table's path as long as the variable with the database's address is not read."""
EXPERIENCE_BUFFER_FIELDS: Final = ("capacity", "max_read_timeout", "replay_buffer")
"""Fields of a buffer that concern stored experiences, and are meaningless for a buffer of rows."""
NO_FORMAT_REASON: Final = "recorded rollouts are token ids, in columns of fixed names"
"""Reason for formats of recorded rollouts without effect."""
_IMITATING: Final = ("mix", "mix_chord")
"""Losses with a likelihood of rows in place of an advantage."""
EXPERIENCES_ONLY_REASON: Final = "only used for experiences, not for rows"
"""Reason for fields of experiences in a buffer of rows."""


def dataset(experiment: Experiment, definition: AlgorithmDefinition, loss: str, notes: Notes) -> TasksetSpec | None:
    """Returns the rows a `train` stage learns from, of a kind its algorithm accepts; None, after adding an issue, if
    missing.
    """
    path: FieldPath = ("buffer", "trainer_input", "experience_buffer")
    buffer = experiment.buffer.trainer_input.experience_buffer
    if inputs := pending_inputs(experiment):
        buffer = buffer.model_copy(update={"path": list(inputs)})
    if definition.needs.rollouts:
        return rows_of(
            buffer,
            path,
            experiment.seed,
            notes,
            name="experience_buffer",
            schema=RECORDED,
            accepted_kinds=(RECORDED,),
        )
    # The algorithm determines the kind of rows; the field only chooses between two accepted kinds.
    schema = buffer.schema_type if buffer.schema_type in definition.other_rows else definition.rows
    accepted_kinds = (definition.rows, *definition.other_rows)
    if schema == "kto" and compares_pairs(loss):
        problem = f"is kto (single responses with a label), but policy_loss_fn {loss} compares pairs"
        notes.wrong(
            (*path, "schema_type"), problem, "leave policy_loss_fn out, or write schema_type: dpo", Contradiction
        )
    return rows_of(
        buffer, path, experiment.seed, notes, name="experience_buffer", schema=schema, accepted_kinds=accepted_kinds
    )


def is_recorded(experiment: Experiment) -> bool:
    """True if the file trains on recorded rollouts: mode train with a file or a table as buffer of experiences, not a
    queue.
    """
    return experiment.mode == "train" and experiment.buffer.trainer_input.experience_buffer.storage_type != "queue"


def check_recorded(experiment: Experiment, definition: AlgorithmDefinition, notes: Notes) -> None:
    """Refuses algorithms needing more than recorded rollouts: expert rows, a teacher, or the sample strategy `mix`."""
    if definition.needs.expert_data or definition.needs.teacher:
        source = "an expert's rows" if definition.needs.expert_data else "a teacher"
        problem = f"is {definition.name}, which needs {source} beside rollouts, but mode train only reads recorded ones"
        fix = "write mode: both, or an algorithm that only needs rollouts, such as grpo"
        notes.wrong(("algorithm", "algorithm_type"), problem, fix, Unsupported)
    if experiment.algorithm.sample_strategy == "mix":
        notes.wrong(("algorithm", "sample_strategy"), "is mix, and mode train explores nothing", "leave it out")


def resolve_mix(
    experiment: Experiment, algorithm: AlgorithmSpec, train_batch: int, notes: Notes
) -> tuple[TasksetSpec | None, int]:
    """Returns the auxiliary dataset, and its rows per batch: ceil(ratio * batch); (None, 0) without the
    strategy `mix`.

    The rows are an expert's texts, or rollouts recorded earlier (`schema_type: experience`).
    """
    buffers = experiment.buffer.trainer_input.auxiliary_buffers
    name: str = algorithm.sample_strategy_args.get("sft_dataset_name", "sft_dataset")
    mixes = algorithm.sample_strategy == "mix"
    for buffer_name in buffers:
        if not (mixes and buffer_name == name):
            notes.warn(f"{show((*_BUFFERS, buffer_name))} has no effect: no sample_strategy uses it")
    if not mixes:
        return None, 0
    ratio: float = algorithm.sample_strategy_args.get("expert_data_ratio", 0.5)
    # Trinity-RFT rounds up as well, so a file gives the same split in both.
    rows = ceil(ratio * train_batch)
    if rows >= train_batch:
        problem = f"is {ratio}: all {rows} of {train_batch} items of a batch would be expert rows"
        notes.wrong((*_ARGS, "expert_data_ratio"), problem, "lower it, or raise buffer.train_batch_size")
        return None, 0
    if name not in buffers:
        buffer_names = ", ".join(buffers) or "none"
        problem = (
            f"sample_strategy mix needs expert rows from {name!r}, but there is no such buffer "
            f"(buffers: {buffer_names})"
        )
        near = difflib.get_close_matches(name, buffers, 1)
        where: FieldPath = (*_BUFFERS, near[0]) if near else _BUFFERS
        fix = f"did you mean {name!r}?" if near else f"set buffer.trainer_input.auxiliary_buffers.{name}.path"
        notes.issues.append(Issue(where, problem, fix, Contradiction, at_key=bool(near)))
        return None, 0
    for field in EXPERIENCE_BUFFER_FIELDS:
        if field in buffers[name].model_fields_set:
            notes.warn(f"{show((*_BUFFERS, name, field))} has no effect: {EXPERIENCES_ONLY_REASON}")
    schema = RECORDED if buffers[name].schema_type == RECORDED else "sft"
    if schema == RECORDED:
        _check_auxiliary(buffers[name], name, algorithm, notes)
    spec = rows_of(
        buffers[name],
        (*_BUFFERS, name),
        experiment.seed,
        notes,
        name=name,
        schema=schema,
        accepted_kinds=("sft", RECORDED),
    )
    if spec is not None:
        spec = msgspec.structs.replace(spec, max_epochs=buffers[name].total_epochs or 0)
    return spec, rows


def _check_auxiliary(buffer: ExperienceBuffer, name: str, algorithm: AlgorithmSpec, notes: Notes) -> None:
    """Refuses recorded rollouts beside a loss that imitates rows, and warns of a format without effect."""
    if algorithm.policy_loss in _IMITATING:
        problem = f"is {RECORDED}, but policy_loss_fn {algorithm.policy_loss} imitates an expert's texts"
        fix = "write schema_type: sft, or another loss such as ppo: recorded rollouts have rewards of their own"
        notes.wrong((*_BUFFERS, name, "schema_type"), problem, fix, Contradiction)
    if "format" in buffer.model_fields_set:
        notes.warn(f"{show((*_BUFFERS, name, 'format'))} has no effect: {NO_FORMAT_REASON}")


def rows_of(
    buffer: ExperienceBuffer,
    path: FieldPath,
    seed: int,
    notes: Notes,
    *,
    name: str,
    schema: str = "sft",
    accepted_kinds: tuple[str, ...] = ("sft",),
) -> TasksetSpec | None:
    """Returns the rows of a buffer for training without rollouts; None, with an issue, if missing.

    `schema` is the kind of the rows, `accepted_kinds` all kinds accepted by the algorithm.
    """
    if not (paths := sources_of(buffer, path, notes)):
        return None
    if buffer.schema_type not in ("auto", schema):
        problem = f"is {buffer.schema_type}, but the algorithm accepts {' or '.join(accepted_kinds)}"
        notes.wrong((*path, "schema_type"), problem, "leave it out, or change algorithm.algorithm_type")
    if buffer.format.enable_concatenated_multi_turn and (schema, buffer.format.prompt_type) != ("sft", "messages"):
        notes.warn(f"{show(path)}.format.enable_concatenated_multi_turn has no effect: only used for sft with messages")
    return TasksetSpec(
        name=buffer.name or name,
        path=paths[0],
        more_paths=paths[1:],
        subset=buffer.subset_name,
        split=buffer.split,
        format=as_declared(buffer.format, Format),
        schema=schema,
        seed=seed,
        limit_rows=buffer.limit_rows,
    )


def sources_of(
    buffer: ExperienceBuffer | Taskset, path: FieldPath, notes: Notes, *, lacking: str = "needs the path of a dataset"
) -> tuple[str, ...]:
    """Returns the files named in a section's `path`, or the table's path that the daemon replaces by a file.

    Empty after adding an issue, with the text `lacking` if no path is set.
    """
    if buffer.storage_type != "sql":
        return paths_of(buffer.path, path, notes, lacking=lacking)
    if not buffer.name:
        notes.wrong((*path, "name"), "is required: the name of the table", "set it")
    if isinstance(buffer.path, dict):
        return (f"{VARIABLE}{buffer.path['env']}",)
    if not isinstance(buffer.path, str) or "://" not in buffer.path:
        fix = "write sqlite:////FOLDER/FILE.db, postgresql://USER@HOST:5432/DATABASE, or {env: NAME} of such a URL"
        notes.wrong((*path, "path"), "needs the URL of a database, because storage_type is sql", fix)
        return ()
    return (buffer.path,)


def paths_of(
    source: Any, path: FieldPath, notes: Notes, *, lacking: str = "needs the path of a dataset"
) -> tuple[str, ...]:
    """Returns the files, patterns and folders in `source`, the field `path` of the section at `path`.

    Empty after adding an issue; the issue is `lacking` if `source` is empty.
    """
    where: FieldPath = (*path, "path")
    named = [source] if isinstance(source, str) else source
    if isinstance(named, dict) or any("://" in text for text in named or ()):
        notes.wrong(where, "rows are read from files, not from a URL", "name a file or folder of rows", Unsupported)
        return ()
    if not named or "" in named:
        notes.wrong(where, lacking, "set it to a file or folder of rows")
        return ()
    twice = [text for text in named if named.count(text) > 1]
    if twice:
        notes.wrong(where, f"{twice[0]!r} is listed twice", "name it once")
        return ()
    return tuple(named)
