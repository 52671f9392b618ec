"""Rows that are trained as they are: those of a `train` stage, or those of an expert beside the experiences."""

from __future__ import annotations

import difflib
from math import ceil
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Issue, Notes, Unsupported
from rftd.daemon.config.schema.buffer import ExperienceBuffer, Taskset
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared
from rftd.streams.spec.row_format import Format
from rftd.streams.spec.spec import AlgorithmSpec, TasksetSpec
from rftd.workers.datasets.recorded import RECORDED
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition
from rftd.workers.learning.losses.registry import compares_pairs

_ARGS: FieldPath = ("algorithm", "sample_strategy_args")
_BUFFERS: FieldPath = ("buffer", "trainer_input", "auxiliary_buffers")

VARIABLE: Final = "env://"
"""Prefix of the path of a table whose database is named by a variable and was not read yet."""
OF_EXPERIENCES: Final = ("capacity", "max_read_timeout", "replay_buffer")
"""Fields of a buffer that say how experiences are kept, and mean nothing where it holds rows."""
NOT_OF_ROWS: Final = "it is for experiences, not for rows"


def dataset(experiment: Experiment, definition: AlgorithmDefinition, loss: str, notes: Notes) -> TasksetSpec | None:
    """The rows that a `train` stage learns from, of its algorithm's kind; None after saying what is missing."""
    path: FieldPath = ("buffer", "trainer_input", "experience_buffer")
    buffer = experiment.buffer.trainer_input.experience_buffer
    if definition.needs.rollouts:
        return rows_of(
            buffer, path, experiment.seed, notes, name="experience_buffer", schema=RECORDED, known=(RECORDED,)
        )
    # The algorithm decides the kind of rows; the field chooses only where it takes two.
    schema = buffer.schema_type if buffer.schema_type in definition.other_rows else definition.rows
    known = (definition.rows, *definition.other_rows)
    if schema == "kto" and compares_pairs(loss):
        what = f"is kto, single responses with a label, and policy_loss_fn {loss} compares two"
        notes.wrong((*path, "schema_type"), what, "leave policy_loss_fn out, or write schema_type: dpo", Contradiction)
    return rows_of(buffer, path, experiment.seed, notes, name="experience_buffer", schema=schema, known=known)


def is_recorded(experiment: Experiment) -> bool:
    """True if the file trains on recorded rollouts: its buffer of experiences is a file or a table, and not a queue."""
    return experiment.mode == "train" and experiment.buffer.trainer_input.experience_buffer.storage_type != "queue"


def check_recorded(experiment: Experiment, definition: AlgorithmDefinition, notes: Notes) -> None:
    """Refuses algorithms with a source beside recorded rollouts."""
    if definition.needs.expert_data or definition.needs.teacher:
        source = "an expert's rows" if definition.needs.expert_data else "a teacher"
        what = f"is {definition.name}, which needs {source} beside rollouts, and mode train reads recorded ones alone"
        fix = "write mode: both, or an algorithm of rollouts alone, as grpo"
        notes.wrong(("algorithm", "algorithm_type"), what, fix, Unsupported)
    if experiment.algorithm.sample_strategy == "mix":
        notes.wrong(("algorithm", "sample_strategy"), "is mix, and mode train explores nothing", "leave it out")


def resolve_mix(
    experiment: Experiment, algorithm: AlgorithmSpec, train_batch: int, notes: Notes
) -> tuple[TasksetSpec | None, int]:
    """The expert's dataset and how many items of a batch are its rows: ceil(ratio * batch); none without `mix`."""
    buffers = experiment.buffer.trainer_input.auxiliary_buffers
    name: str = algorithm.sample_strategy_args.get("sft_dataset_name", "sft_dataset")
    mixes = algorithm.sample_strategy == "mix"
    for each in buffers:
        if not (mixes and each == name):
            notes.warn(f"{show((*_BUFFERS, each))} has no effect: no sample_strategy takes rows of it")
    if not mixes:
        return None, 0
    ratio: float = algorithm.sample_strategy_args.get("expert_data_ratio", 0.5)
    # Trinity-RFT rounds up, too, so a file gives the same split here and there.
    rows = ceil(ratio * train_batch)
    if rows >= train_batch:
        what = f"is {ratio}: of {train_batch} items of a batch {rows} are an expert's, and none is explored"
        notes.wrong((*_ARGS, "expert_data_ratio"), what, "lower it, or raise buffer.train_batch_size")
        return None, 0
    if name not in buffers:
        known = ", ".join(buffers) or "none"
        what = (
            f"sample_strategy mix takes its expert's rows from {name!r}, and there is no such buffer (given: {known})"
        )
        near = difflib.get_close_matches(name, buffers, 1)
        where: FieldPath = (*_BUFFERS, near[0]) if near else _BUFFERS
        fix = f"did you mean {name!r}?" if near else f"set buffer.trainer_input.auxiliary_buffers.{name}.path"
        notes.issues.append(Issue(where, what, fix, Contradiction, at_key=bool(near)))
        return None, 0
    for field in OF_EXPERIENCES:
        if field in buffers[name].model_fields_set:
            notes.warn(f"{show((*_BUFFERS, name, field))} has no effect: {NOT_OF_ROWS}")
    spec = rows_of(buffers[name], (*_BUFFERS, name), experiment.seed, notes, name=name)
    if spec is not None:
        spec = msgspec.structs.replace(spec, max_epochs=buffers[name].total_epochs or 0)
    return spec, rows


def rows_of(
    buffer: ExperienceBuffer,
    path: FieldPath,
    seed: int,
    notes: Notes,
    *,
    name: str,
    schema: str = "sft",
    known: tuple[str, ...] = ("sft",),
) -> TasksetSpec | None:
    """The rows that a buffer names, to be trained as they are; None after saying what is missing.

    `schema` is what they are, `known` all that they might be for who trains on them.
    """
    if not (paths := sources_of(buffer, path, notes)):
        return None
    if buffer.schema_type not in ("auto", schema):
        what = f"is {buffer.schema_type}, but what trains on these rows takes {' or '.join(known)}"
        notes.wrong((*path, "schema_type"), what, "leave it out, or change algorithm.algorithm_type")
    if buffer.format.enable_concatenated_multi_turn and (schema, buffer.format.prompt_type) != ("sft", "messages"):
        notes.warn(f"{show(path)}.format.enable_concatenated_multi_turn has no effect: it is for sft and messages")
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
    """The sources in the `path` of a section: files, or the database of a table that the daemon reads into a file."""
    if buffer.storage_type != "sql":
        return paths_of(buffer.path, path, notes, lacking=lacking)
    if not buffer.name:
        notes.wrong((*path, "name"), "is required: it is the name of the table", "set it")
    if isinstance(buffer.path, dict):
        return (f"{VARIABLE}{buffer.path['env']}",)
    if not isinstance(buffer.path, str) or "://" not in buffer.path:
        fix = "write sqlite:////FOLDER/FILE.db, postgresql://USER@HOST:5432/DATABASE, or {env: NAME} of such a URL"
        notes.wrong((*path, "path"), "needs the URL of a database, for storage_type is sql", fix)
        return ()
    return (buffer.path,)


def paths_of(
    source: Any, path: FieldPath, notes: Notes, *, lacking: str = "needs the path of a dataset"
) -> tuple[str, ...]:
    """The files, patterns and folders that `source`, the field `path` of the section at `path`, names.

    Nothing after saying what is wrong, or `lacking` if none is named.
    """
    where: FieldPath = (*path, "path")
    named = [source] if isinstance(source, str) else source
    if isinstance(named, dict) or any("://" in text for text in named or ()):
        notes.wrong(
            where, "rows are read from files, not from an address", "name a file or folder of rows", Unsupported
        )
        return ()
    if not named or "" in named:
        notes.wrong(where, lacking, "set it to a file or folder of rows")
        return ()
    twice = [text for text in named if named.count(text) > 1]
    if twice:
        notes.wrong(where, f"{twice[0]!r} is listed twice", "name it once")
        return ()
    return tuple(named)
