"""`EnvironmentTasks`: the rows of environments in JSON Lines files, made once at submission.

The environment's server runs in a sandbox. An environment may change its dataset, and a file does not: replays, forks
and workers read only the file, and a rollout of a row that the environment no longer has fails.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rftd.daemon.config.field_path import show
from rftd.daemon.run.supervisor.data_sections import DataSection, data_sections
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.row_writer import RowWriter
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops.errors import DataError, RftdError
from rftd.workers.workflows.environments.address import names_environment
from rftd.workers.workflows.registry import ENVIRONMENT_WORKFLOW, WORKFLOWS

_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]+")
"""Characters replaced in file names."""


def names_environments(config: dict[str, Any]) -> bool:
    """True if a taskset of the configuration has an environment's address as path."""
    return any(True for _ in _environments(config))


class EnvironmentTasks:
    """Reads the environments named in a submission into files for its workers."""

    def __init__(self, judge: SubmissionJudge, tables: KeptTables) -> None:
        """`tables` decides where the files go; `judge` checks the asker's rights."""
        self._judge = judge
        self._tables = tables
        self.notes: list[str] = []
        """Warnings about the environments read."""

    def read(self, config: dict[str, Any], root: Path, folder: Path | None = None) -> dict[str, Any]:
        """Reads each environment into a file, and returns the configuration naming the files. Blocks.

        The files go to `folder`, or by default under the checkpoint root. Raises ConfigError, NotAllowedError, and
        DataError for an environment without rows.
        """
        changed = copy.deepcopy(config)
        for section in list(_environments(changed)):
            arguments = {**_as_mapping(section.fields.get("workflow_args")), "environment": section.fields["path"]}
            self._judge.environment(arguments, (*section.path, "workflow_args"), (*section.path, "path"))
            try:
                WORKFLOWS.check_arguments(ENVIRONMENT_WORKFLOW, arguments)
                file, rows = asyncio.run(
                    _write_rows(arguments, section.fields.get("limit_rows"), folder or self._tables.folder(root))
                )
            except RftdError as error:
                error.field = show((*section.path, "path"))
                raise
            kept_in = f", kept in {file}" if folder is None else ""
            self.notes.append(f"{show((*section.path, 'path'))}: the environment has {rows} rows{kept_in}")
            section.fields.update(path=str(file), default_workflow_type=ENVIRONMENT_WORKFLOW, workflow_args=arguments)
        return changed


def _environments(config: dict[str, Any]) -> Iterator[DataSection]:
    """Yields the tasksets to read; another workflow beside an environment is reported with the other errors."""
    return (
        section
        for section in data_sections(config)
        if section.of_tasks
        and names_environment(section.fields.get("path"))
        and section.fields.get("default_workflow_type") in (None, ENVIRONMENT_WORKFLOW)
    )


def _as_mapping(node: object) -> dict[str, Any]:
    """Returns the node if it is a mapping, else an empty one."""
    return node if isinstance(node, dict) else {}


async def _write_rows(arguments: dict[str, Any], limit_rows: object, folder: Path) -> tuple[Path, int]:
    """Writes the rows of an environment into a file, and returns the file and the number of rows. Raises DataError
    without rows.
    """
    from rftd.workers.workflows.environments.rows import environment_rows
    from rftd.workers.workflows.environments.workflow import EnvironmentWorkflow

    workflow = WORKFLOWS.open(ENVIRONMENT_WORKFLOW, arguments)
    assert isinstance(workflow, EnvironmentWorkflow)
    program = workflow.program
    # No dot: the end of the name would be taken for a kind of file.
    name = _NOT_IN_NAMES.sub("-", f"{program.address.kind}-{program.address.name}")[:80]
    with RowWriter(folder, name) as writer:
        async for row in environment_rows(program, limit_rows if isinstance(limit_rows, int) else None):
            writer.add(row)
        if not writer.rows:
            raise DataError(f"environment {program.address.name!r} has no rows", fix="raise size in its address")
        return writer.finish(), writer.rows
