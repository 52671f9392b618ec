"""Checks of one experiment file, and of everything it names, read as by its workers. Nothing is trained or kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, parse
from rftd.daemon.config.issue import ConfigErrors, say_where
from rftd.daemon.config.loading import Submission, check_config
from rftd.daemon.config.source import SourceMap
from rftd.daemon.http.views.memory import memory_line, rows_of
from rftd.daemon.observe.doctor.checkpoints import check_checkpoints
from rftd.daemon.observe.doctor.prompts import check_prompts
from rftd.daemon.run.supervisor.environment_tasks import EnvironmentTasks, names_environments
from rftd.daemon.run.supervisor.hub_cache import HubCache, with_snapshots
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.preflight import preflight, with_files
from rftd.daemon.run.supervisor.sql_tables import SqlTables, names_tables
from rftd.daemon.run.supervisor.task_pipelines import TaskPipelines, names_task_pipelines
from rftd.daemon.trust.allowances import NOTHING_MORE
from rftd.daemon.trust.asker import OWNER
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops.errors import ConfigError, DataError, NotInstalledError, RftdError
from rftd.ops.health import Diagnosis
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.datasets.stage_tokenizer import stage_tokenizer
from rftd.workers.datasets.tokenizer import NO_TEMPLATE
from rftd.workers.devices.device_memory import elements_of, weight_files
from rftd.workers.devices.host import Host
from rftd.workers.models.model_folder import check_weights

_NAMED: Final = {"model": "model", "buffer": "dataset"}
"""Checks for errors of a section; other errors belong to the file."""


def check_file(submission: Submission, host: Host) -> list[Diagnosis]:
    """Returns the findings about an experiment for workers on `host`: file, models, datasets, prompts, space."""
    spec = submission.spec
    warned = [_warning_finding(text) for text in submission.warnings]
    if submission.wrong is not None:
        wrong = with_files(submission.wrong)
        say_where(wrong, submission.source)
        return [*of_errors(wrong.errors), *warned]
    with ExitStack() as temporary_files:
        try:
            config = _with_files(spec.config, host, temporary_files)
            if config != spec.config:
                spec = check_config(config, host=host)
        except RftdError as error:
            say_where(error, submission.source)
            return [*of_errors(getattr(error, "errors", (error,))), *warned]
        findings = [
            Diagnosis("file", "ok", f"{submission.source.origin}: {spec.project}/{spec.name} can be read"),
            *warned,
        ]
        return _preflight_findings(spec, findings, submission.source, host)


def _with_files(config: dict[str, Any], host: Host, temporary_files: ExitStack) -> dict[str, Any]:
    """Returns the configuration with a folder for each name on the hub, and a file for each table, environment
    and task pipeline.

    The files are deleted on leaving `temporary_files`. Raises the errors of reading a table.
    """
    if names_tables(config) or names_environments(config) or names_task_pipelines(config):
        folder = Path(temporary_files.enter_context(tempfile.TemporaryDirectory(prefix="rftd-doctor-")))
        judge = SubmissionJudge(OWNER, NOTHING_MORE)
        config = SqlTables(os.environ, judge, KeptTables(None)).read(config, folder)
        config = EnvironmentTasks(judge, KeptTables(None)).read(config, folder, folder)
        if names_task_pipelines(config):
            config = TaskPipelines(judge, KeptTables(None)).read(config, folder, host, folder)
    return with_snapshots(config, HubCache.of(os.environ))


def _preflight_findings(
    spec: ExperimentSpec, findings: list[Diagnosis], source: SourceMap, host: Host
) -> list[Diagnosis]:
    """Returns `findings` with those of the daemon's preflight, of memory, models, prompts and space."""
    try:
        counted = preflight(spec, host)
    except (ConfigErrors, ConfigError, DataError) as error:
        say_where(error, source)
        findings += of_errors(getattr(error, "errors", (error,)))
        # The valid parts may yield more findings: a model may exist while its dataset is missing.
        counted = spec
    findings += _memory_findings(counted)
    failed_checks = {finding.check for finding in findings if finding.status == "fail"}
    for stage in counted.stages:
        of_model = [] if "model" in failed_checks else list(_model_findings(stage))
        findings += of_model
        can_encode = not any(finding.check == "tokenizer" and finding.status == "fail" for finding in of_model)
        if can_encode and not failed_checks & {"model", "dataset", "chat template"}:
            findings += check_prompts(stage)
    return [*_without_duplicates(findings), *check_checkpoints(counted)]


def _warning_finding(text: str) -> Diagnosis:
    """Returns a warning of the file as a finding."""
    if text.startswith("monitor."):
        return Diagnosis("monitor", "warn", text, "let Prometheus scrape /metrics, or see rftd steps NAME")
    return Diagnosis("file", "warn", text)


def of_errors(errors: Iterable[RftdError]) -> list[Diagnosis]:
    """Returns a failed finding for each error of an experiment file, under the name of the check it concerns."""
    return [_error_finding(error) for error in errors]


def _error_finding(error: RftdError) -> Diagnosis:
    """Returns an error of the file as a finding, under the check of its section."""
    path: FieldPath = (parse(error.field) if error.field else None) or ()
    sections = [str(section) for section in path if str(section) in _NAMED]
    check = _NAMED[sections[0]] if sections else "file"
    if NO_TEMPLATE in error.what:
        check = "chat template"
    position = ", ".join(filter(None, (error.where, error.field)))
    fix = error.fix or f"see rftd explain {error.code}"
    return Diagnosis(check, "fail", f"{position}: {error.what}" if position else error.what, fix)


def _memory_findings(spec: ExperimentSpec) -> Iterator[Diagnosis]:
    """Yields the memory of the workers against their devices; a warning if it may not fit."""
    for row in rows_of(spec.memory):
        fits = row.workers * row.size_bytes <= row.device_bytes
        fix = "" if fits else "take a smaller model, shorter texts, or trainer.engine_args.gradient_checkpointing"
        yield Diagnosis("memory", "ok" if fits else "warn", memory_line(row), fix)


def _model_findings(stage: StageSpec) -> Iterator[Diagnosis]:
    """Yields the findings about the weights and the tokenizer of a stage's model."""
    if stage.trainer.engine == "fake" or not stage.model.path or stage.rollout.engine == SERVICE:
        return
    folder = Path(stage.model.path)
    if stage.trainer.engine != "tinker":  # else the weights are at the service
        yield from _weight_findings(folder)
    try:
        stage_tokenizer(stage)
    except NotInstalledError as error:
        yield Diagnosis("tokenizer", "warn", f"not checked here, but by workers: {error.what}", error.fix or "")
        return
    except DataError as error:
        yield Diagnosis("tokenizer", "fail", f"{folder}: {error.what}", error.fix or "")
        return
    yield Diagnosis("tokenizer", "ok", f"read from {folder}")


def _weight_findings(folder: Path) -> Iterator[Diagnosis]:
    """Yields the finding about the weights in a model's folder."""
    try:
        check_weights(folder)
    except DataError as error:
        yield Diagnosis("model", "fail", f"{error.where}: {error.what}", error.fix or "")
        return
    files = weight_files(folder)
    where = "one file" if len(files) == 1 else f"{len(files)} files"
    yield Diagnosis("model", "ok", f"{folder}: {elements_of(folder):,} weights in {where}")


def _without_duplicates(findings: list[Diagnosis]) -> list[Diagnosis]:
    """Returns the findings without duplicates from stages sharing a section."""
    return list(dict.fromkeys(findings))
