"""Checks of one experiment file: what it names, read as its workers would read it. Nothing is trained or kept."""

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
from rftd.daemon.run.supervisor.hub_cache import HubCache, with_snapshots
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.preflight import preflight, with_files
from rftd.daemon.run.supervisor.sql_tables import SqlTables, names_tables
from rftd.daemon.trust.allowances import NOTHING_MORE
from rftd.daemon.trust.asker import OWNER
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops.errors import ConfigError, DataError, NotInstalledError, RftdError
from rftd.ops.health import Diagnosis
from rftd.streams.spec.auxiliary import SERVICE
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.datasets.stage_tokenizer import stage_tokenizer
from rftd.workers.datasets.tokenizer import NO_TEMPLATE
from rftd.workers.devices.device_memory import elements_of, weight_files
from rftd.workers.devices.host import Host
from rftd.workers.models.model_folder import check_weights

_NAMED: Final = {"model": "model", "buffer": "dataset"}
"""Checks that errors of a section belong to; the rest are those of the file."""


def check_file(submission: Submission, host: Host) -> list[Diagnosis]:
    """The findings of an experiment for workers on `host`: file, models, datasets, prompts, space for checkpoints."""
    spec = submission.spec
    warned = [_warning(text) for text in submission.warnings]
    if submission.wrong is not None:
        wrong = with_files(submission.wrong)
        say_where(wrong, submission.source)
        return [*of_errors(wrong.errors), *warned]
    with ExitStack() as held:
        try:
            config = _with_files(spec.config, held)
            if config != spec.config:
                spec = check_config(config, host=host)
        except RftdError as error:
            say_where(error, submission.source)
            return [*of_errors(getattr(error, "errors", (error,))), *warned]
        found = [
            Diagnosis("file", "ok", f"{submission.source.origin}: {spec.project}/{spec.name} can be read"),
            *warned,
        ]
        return _looked_at(spec, found, submission.source, host)


def _with_files(config: dict[str, Any], held: ExitStack) -> dict[str, Any]:
    """The configuration with a folder for each name on the hub, and a file for each table of a database.

    The files are gone once `held` is left. Raises what reading a table raises.
    """
    if names_tables(config):
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="rftd-doctor-"))
        judge = SubmissionJudge(OWNER, NOTHING_MORE)
        config = SqlTables(os.environ, judge, KeptTables(None)).read(config, Path(folder))
    return with_snapshots(config, HubCache.of(os.environ))


def _looked_at(spec: ExperimentSpec, found: list[Diagnosis], source: SourceMap, host: Host) -> list[Diagnosis]:
    try:
        counted = preflight(spec, host)
    except (ConfigErrors, ConfigError, DataError) as error:
        say_where(error, source)
        found += of_errors(getattr(error, "errors", (error,)))
        # What is right of it may have more to say: a model may be there whose dataset is not.
        counted = spec
    found += _of_memory(counted)
    said = {each.check for each in found if each.status == "fail"}
    for stage in counted.stages:
        of_model = [] if "model" in said else list(_of_model(stage))
        found += of_model
        can_encode = not any(each.check == "tokenizer" and each.status == "fail" for each in of_model)
        if can_encode and not said & {"model", "dataset", "chat template"}:
            found += check_prompts(stage)
    return [*_once(found), *check_checkpoints(counted)]


def _warning(text: str) -> Diagnosis:
    if text.startswith("monitor."):
        return Diagnosis("monitor", "warn", text, "let Prometheus scrape /metrics, or see rftd steps NAME")
    return Diagnosis("file", "warn", text)


def of_errors(errors: Iterable[RftdError]) -> list[Diagnosis]:
    """One failed finding for each error of a file, under what it concerns."""
    return [_finding(error) for error in errors]


def _finding(error: RftdError) -> Diagnosis:
    path: FieldPath = (parse(error.field) if error.field else None) or ()
    sections = [str(part) for part in path if str(part) in _NAMED]
    check = _NAMED[sections[0]] if sections else "file"
    if NO_TEMPLATE in error.what:
        check = "chat template"
    place = ", ".join(filter(None, (error.where, error.field)))
    fix = error.fix or f"see rftd explain {error.code}"
    return Diagnosis(check, "fail", f"{place}: {error.what}" if place else error.what, fix)


def _of_memory(spec: ExperimentSpec) -> Iterator[Diagnosis]:
    """The memory of the workers against their devices; a warning for what may not fit together."""
    for row in rows_of(spec.memory):
        fits = row.workers * row.size_bytes <= row.device_bytes
        fix = "" if fits else "take a smaller model, shorter texts, or trainer.engine_args.gradient_checkpointing"
        yield Diagnosis("memory", "ok" if fits else "warn", memory_line(row), fix)


def _of_model(stage: StageSpec) -> Iterator[Diagnosis]:
    """The findings of the weights and the tokenizer of a stage's model."""
    if stage.trainer.engine == "fake" or not stage.model.path or stage.rollout.engine == SERVICE:
        return
    folder = Path(stage.model.path)
    if stage.trainer.engine != "tinker":  # else the weights are at the service
        yield from _of_weights(folder)
    try:
        stage_tokenizer(stage)
    except NotInstalledError as error:
        yield Diagnosis("tokenizer", "warn", f"not looked at, which workers do: {error.what}", error.fix or "")
        return
    except DataError as error:
        yield Diagnosis("tokenizer", "fail", f"{folder}: {error.what}", error.fix or "")
        return
    yield Diagnosis("tokenizer", "ok", f"read from {folder}")


def _of_weights(folder: Path) -> Iterator[Diagnosis]:
    try:
        check_weights(folder)
    except DataError as error:
        yield Diagnosis("model", "fail", f"{error.where}: {error.what}", error.fix or "")
        return
    files = weight_files(folder)
    where = "one file" if len(files) == 1 else f"{len(files)} files"
    yield Diagnosis("model", "ok", f"{folder}: {elements_of(folder):,} weights in {where}")


def _once(found: list[Diagnosis]) -> list[Diagnosis]:
    """The findings without those that two stages share."""
    return list(dict.fromkeys(found))
