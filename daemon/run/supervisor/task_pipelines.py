"""`TaskPipelines`: the rows of task pipelines in JSON Lines files, made once at submission.

The operators run in a process beside the daemon. The result, its digest and the digests of inputs and operators are
recorded with the experiment; replays, forks and workers read only the file.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.loading import check_config
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.row_writer import RowWriter
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError, DataError
from rftd.ops.machine_environment import machine_environment
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.streams.spec.task_pipeline import TaskPipelineSpec, TasksMade, settings_digest
from rftd.workers.devices.host import Host
from rftd.workers.pipelines.task_pipeline import TaskPipelineJob

_SECTION: Final[FieldPath] = ("data_processor", "task_pipeline")
"""Path of the task pipeline's section, named by errors."""
_COMMAND: Final = (sys.executable, "-P", "-m", "rftd.workers.pipelines.task_process")
"""Command line of the process that runs a task pipeline."""
_ERROR_CHARS: Final = 400
"""Maximum characters of the process's error output in a reason."""


class _PendingTasks(NamedTuple):
    """A task pipeline not run yet, with the place of the section in the file."""

    path: FieldPath
    """Path of the file's node containing the pipeline: empty for the whole file, else that of a stage."""
    node: dict[str, Any]
    """The whole file, or a stage of the file."""
    stage: StageSpec
    """Specification of the stage whose taskset receives the rows."""


def names_task_pipelines(config: Mapping[str, Any]) -> bool:
    """True if a task pipeline of the configuration was not run yet."""
    return any(_section(node) for _, node in _nodes(config))


def check_made(config: Mapping[str, Any]) -> None:
    """Raises ConfigError for a task pipeline not run yet, as in a fork with changes."""
    for path, node in _nodes(config):
        if _section(node):
            raise ConfigError(
                "is not run for a fork: its rows are made at submission",
                field=show((*path, *_SECTION)),
                fix="submit the file as a new experiment",
            )


class TaskPipelines:
    """Runs the task pipelines of a submission, and writes the rows into files for its workers."""

    def __init__(self, judge: SubmissionJudge, tables: KeptTables) -> None:
        """`tables` decides where the files go; `judge` checks the asker's rights."""
        self._judge = judge
        self._tables = tables
        self.notes: list[str] = []
        """Warnings about the rows made."""

    def read(self, config: dict[str, Any], root: Path, host: Host, folder: Path | None = None) -> dict[str, Any]:
        """Makes the rows of each pipeline, and returns the configuration naming their file and origin. Blocks.

        The files go to `folder`, or by default under the checkpoint root. Raises ConfigErrors, ConfigError,
        NotAllowedError, and DataError for unreadable inputs or a failed operator.
        """
        changed = copy.deepcopy(config)
        # Operators see the arguments before the file as a whole is judged.
        file_judge = None if self._judge.asker.is_owner else self._judge.file
        spec = check_config(changed, host=host, judge=file_judge)
        for pending in list(_pending(changed, spec)):
            pipeline = pending.stage.task_pipeline
            assert pipeline is not None, pending.path
            path = (*pending.path, *_SECTION)
            for number, text in enumerate(pipeline.inputs):
                self._judge.folder((*path, "inputs", number), text)
            if pipeline.output:
                self._judge.folder((*path, "output"), pipeline.output)
            inputs = pending.stage.taskset or pending.stage.dataset
            assert inputs is not None, pending.path
            file, made = _made(pipeline, inputs, folder or self._tables.folder(root), path)
            if pipeline.output and folder is None:
                _copied(file, Path(pipeline.output), (*path, "output"))
            total = sum(rows.rows for rows in made.inputs)
            kept_in = f", kept in {file}" if folder is None else ""
            self.notes.append(f"{show(path)}: {made.rows} of {total} rows{kept_in}")
            _section(pending.node).update(
                inputs=list(pipeline.inputs),
                output={"path": pipeline.output} if pipeline.output else None,
                made=msgspec.json.decode(msgspec.json.encode(made)),
            )
            _target(pending.node, pending.stage).update(storage_type="file", path=str(file), limit_rows=None)
        return changed


def _pending(config: dict[str, Any], spec: ExperimentSpec) -> Iterator[_PendingTasks]:
    """Yields the pipelines to be run, with the stage resolved from the file."""
    stages = config.get("stages") or []
    for path, node in _nodes(config):
        if not _section(node):
            continue
        own = [spec.stages[path[1]]] if path and isinstance(path[1], int) else []
        inheriting = [
            stage
            for number, stage in enumerate(spec.stages)
            if not stages or not _mapping(_mapping(stages[number]).get("data_processor")).get("task_pipeline")
        ]
        stage = next((stage for stage in own or inheriting if stage.task_pipeline is not None), None)
        if stage is not None:
            yield _PendingTasks(path, node, stage)


def _nodes(config: Mapping[str, Any]) -> Iterator[tuple[FieldPath, dict[str, Any]]]:
    """Yields the file, and each stage of the file."""
    yield (), config  # type: ignore[misc]
    stages = config.get("stages")
    for number, stage in enumerate(stages if isinstance(stages, list) else ()):
        if isinstance(stage, dict):
            yield ("stages", number), stage


def _section(node: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the pipeline's section of a file or stage if the rows are still to be made; else an empty mapping."""
    section = _mapping(_mapping(node.get("data_processor")).get("task_pipeline"))
    return section if section.get("operators") and not section.get("made") else {}


def _mapping(node: object) -> dict[str, Any]:
    """Returns the node if it is a mapping, else an empty one."""
    return node if isinstance(node, dict) else {}


def _target(node: dict[str, Any], stage: StageSpec) -> dict[str, Any]:
    """Returns the section receiving the rows: the first taskset, or the rows of a train stage; made if missing."""
    buffer = _made_section(node, "buffer")
    if stage.kind == "train":
        return _made_section(_made_section(buffer, "trainer_input"), "experience_buffer")
    inputs = _made_section(buffer, "explorer_input")
    tasksets = inputs.get("tasksets")
    if tasksets:
        first: dict[str, Any] = tasksets[0]
        return first
    return _made_section(inputs, "taskset")


def _made_section(node: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the mapping under `name`, created in `node` if missing."""
    if not isinstance(node.get(name), dict):
        node[name] = {}
    section: dict[str, Any] = node[name]
    return section


def _made(pipeline: TaskPipelineSpec, inputs: TasksetSpec, folder: Path, path: FieldPath) -> tuple[Path, TasksMade]:
    """Runs a pipeline in a process (killed at the end), and returns the file of rows with the record of the run. Raises
    ConfigError or DataError for a failed operator or process. Blocks.
    """
    job = TaskPipelineJob(pipeline=pipeline, inputs=inputs, settings=settings_digest(pipeline))
    with tempfile.TemporaryFile() as messages, RowWriter(folder, "tasks") as writer:
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            env=machine_environment(os.environ),
            cwd=folder,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdin:
                process.stdin.write(msgspec.json.encode(job))
            for line in process.stdout:
                kind, payload = msgspec.json.decode(line)
                if kind == "row":
                    writer.add(payload)
                elif kind == "made":
                    return writer.finish(), converted(payload, TasksMade)
                else:
                    raise _failure(payload, path)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        messages.seek(0)
        tail = messages.read()[-_ERROR_CHARS:].decode(errors="replace").strip()
        problem = f"the process of the operators ended with status {process.returncode}: {tail or 'without a message'}"
        raise DataError(problem, field=show(path), fix="see the daemon's log, and the operators of third parties")


def _failure(reason: Mapping[str, Any], path: FieldPath) -> ConfigError | DataError:
    """Builds the error reported by the process, about the field at `path`."""
    kind = ConfigError if reason["kind"] == "ConfigError" else DataError
    return kind(reason["what"], where=reason["where"], field=show(path), fix=reason["fix"])


def _copied(file: Path, output: Path, path: FieldPath) -> None:
    """Writes a copy of the result to `output`. Raises ConfigError if a different file is there or cannot be written."""
    try:
        with output.open("xb") as copy_file, file.open("rb") as rows:
            shutil.copyfileobj(rows, copy_file)
    except FileExistsError:
        if output.is_file() and output.read_bytes() == file.read_bytes():  # of this submission before a crash
            return
        raise ConfigError(f"{output} exists", field=show(path), fix="name a new file, or leave it out") from None
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}", field=show(path)) from None
