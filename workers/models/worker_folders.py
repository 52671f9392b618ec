"""The folders read and written by a worker of an experiment, checked with the rights of the worker's user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.models.model_folder import check_rights, check_writable


def check_folders(spec: ExperimentSpec, *, trains: bool) -> None:
    """Raises DataError if this process's user may not use the folders of a trainer (`trains`), or of an explorer.

    The daemon has checked with its own user's rights; a worker started by hand may have another user. Blocks.
    """
    for path, field in _models(spec, trains=trains):
        check_rights(Path(path), field=field)
    if trains:
        check_writable(Path(spec.job_dir), field="checkpoint_root_dir")


def _models(spec: ExperimentSpec, *, trains: bool) -> Iterator[tuple[str, str]]:
    """Yields each model folder with the field naming it."""
    for stage in spec.stages:
        if stage.model.path:
            yield stage.model.path, "model.model_path"
        if trains:
            if stage.trainer.critic_path:
                yield stage.trainer.critic_path, "model.critic_model_path"
            if stage.trainer.teacher_path:
                yield stage.trainer.teacher_path, "explorer.auxiliary_models"
        else:
            for number, auxiliary in enumerate(stage.auxiliary):
                if auxiliary.path and not auxiliary.served:
                    yield auxiliary.path, f"explorer.auxiliary_models[{number}].model_path"
