"""`juicer_of`: the service Data-Juicer of an experiment (`service.data_juicer`), checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Notes
from rftd.daemon.config.schema.experiment import DataJuicer, Experiment
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.task_pipeline import JuicerSpec

_DATA_JUICER_PATH: Final[FieldPath] = ("service", "data_juicer")
"""Path of the section with the Data-Juicer service."""
DATA_JUICER: Final = "data_juicer"
"""The operator of the experience pipeline, and the service."""


def has_juicer(experiment: Experiment) -> bool:
    """True if the file names the service."""
    section = experiment.service.data_juicer
    return section is not None and (section.auto_start or section.server_url is not None)


def juicer_of(experiment: Experiment, notes: Notes) -> JuicerSpec:
    """Returns the service, with issues for settings that cannot be used."""
    section = experiment.service.data_juicer
    if section is None or not has_juicer(experiment):
        fix = "set service.data_juicer.server_url or auto_start"
        notes.wrong(_DATA_JUICER_PATH, "is not set, but an operator needs it", fix)
        return JuicerSpec()
    if not section.auto_start and not isinstance(section.server_url, str):
        notes.wrong((*_DATA_JUICER_PATH, "server_url"), "is no text", "write http://HOST:PORT")
    if not section.auto_start and (section.python or section.port):
        notes.warn(
            f"{show(_DATA_JUICER_PATH)} has no effect with server_url, except server_url and release: "
            "auto_start is false"
        )
    return JuicerSpec(
        server_url=section.server_url if isinstance(section.server_url, str) and not section.auto_start else "",
        auto_start=section.auto_start,
        port=(section.port or 0) if section.auto_start else 0,
        python=(section.python or "") if section.auto_start else "",
        release=section.release,
    )


def idle_juicer(experiment: Experiment, stages: Sequence[StageSpec]) -> Iterator[str]:
    """Yields a warning for a service that no operator uses."""
    used = any(
        (stage.task_pipeline is not None and stage.task_pipeline.juicer is not None)
        or any(operator.name == DATA_JUICER for operator in stage.pipeline)
        for stage in stages
    )
    if not used and experiment.service.data_juicer not in (None, DataJuicer()):
        yield f"{show(_DATA_JUICER_PATH)} has no effect: no operator uses it"
