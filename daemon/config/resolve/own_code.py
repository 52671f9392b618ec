"""Python files named by rewards, workflows, agents and losses: checked without running, and put into their stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Notes, WrongValue
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.workflows.source import SourceName, agent_source, check_source, source_name


def check_own_source(path: FieldPath, source: SourceName, sources: Mapping[str, str], notes: Notes) -> None:
    """Adds an issue for a file that is not submitted, is no Python, or does not define the name."""
    if source.file not in sources:
        notes.wrong(path, f"names {source.file}, which `sources` does not hold", "submit it with `rftd submit`")
        return
    try:
        check_source(source, sources[source.file])
    except ConfigError as error:
        where = f"{error.where}: " if error.where else ""
        notes.wrong(path, f"{where}{error.what}", error.fix, WrongValue)


def with_sources(stage: StageSpec, sources: Mapping[str, str]) -> StageSpec:
    """Returns the stage with the text of each Python file named by its tasksets or its algorithm."""
    files = sorted({name.file for name in _sources_of(stage)})
    return msgspec.structs.replace(stage, sources={file: sources[file] for file in files if file in sources})


def _sources_of(stage: StageSpec) -> Iterator[SourceName]:
    names = [source_name(stage.algorithm.policy_loss)]
    for taskset in (*tasksets_of(stage), *stage.evals):
        names += [source_name(taskset.workflow), source_name(taskset.reward)]
        names.append(agent_source(taskset.workflow, taskset.workflow_args))
    yield from (name for name in names if name is not None)
