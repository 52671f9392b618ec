"""`Findings`: the errors of several checks of a specification, each under its field in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, child, parse, show
from rftd.daemon.config.issue import ConfigErrors, Issue
from rftd.daemon.config.resolve.experiment import relocated
from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.spec import ExperimentSpec, StageSpec

INPUT: Final[FieldPath] = ("buffer", "explorer_input")
"""Path of the section with tasksets of explorers."""
_SHARED: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "taskset": {
        "default_workflow_type": ("default_workflow_type",),
        "default_reward_fn_type": ("default_reward_fn_type",),
    },
    "eval_tasksets": {
        "default_workflow_type": ("default_eval_workflow_type", "default_workflow_type"),
        "default_reward_fn_type": ("default_reward_fn_type",),
    },
}
"""By kind of taskset section: the fields with a default in the enclosing section, and the default's names there."""


class Findings:
    """Collects the errors of several checks of one specification, each once and under its field in the file, although
    stages share sections.
    """

    def __init__(self, spec: ExperimentSpec) -> None:
        """Collects the errors of checks of `spec`."""
        self.spec = spec
        self.errors: list[ConfigError | DataError] = []
        """The errors recorded, each once."""

    @contextmanager
    def of(self, stage: StageSpec, path: FieldPath = (), *, at: str = "") -> Iterator[None]:
        """A context recording a ConfigError or DataError raised in the block; the rest of the block is skipped.

        The error's field is put below `path`; an error without a field gets `at`. Unreadable files count as such an
        error too.
        """
        try:
            yield
        except (ConfigError, DataError) as error:
            self._add(error, stage, path, error.field or at)
        except OSError as error:
            problem = f"{error.filename!r} cannot be read: {error.strerror or error}"
            fix = "let the daemon's user and its workers' read it, or name another one"
            self._add(DataError(problem, fix=fix), stage, path, at)

    def _add(self, error: ConfigError | DataError, stage: StageSpec, path: FieldPath, below: str) -> None:
        """Records an error under its field in the file: `path` and `below`, in the stage or globally."""
        error.field = field_in(self.spec, stage, path, below)
        if not any(
            (error_before.field, error_before.what) == (error.field, error.what) for error_before in self.errors
        ):
            self.errors.append(error)

    def check(self) -> None:
        """Raises the recorded error, or ConfigErrors with all of them; returns if there are none."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ConfigErrors(self.errors)


def field_in(spec: ExperimentSpec, stage: StageSpec, path: FieldPath, below: str) -> str:
    """Returns the text path of a field as written in the file: `path` and `below` in the stage if the stage sets the
    field, in the enclosing section if the default is set there, else in the global sections.
    """
    stages = spec.config.get("stages") or []
    number = next((i for i, section in enumerate(stages) if section.get("stage_name") == stage.name), None)
    prefix: FieldPath = () if number is None else ("stages", number)
    # A key made of digits, such as a token's id, is no list index.
    parts = (parse(below) if "[" in below else tuple(below.split(".")) if below else ()) or ()
    if not _is_set(spec.config, prefix, (*path, *parts)):
        shared = _SHARED.get(str(path[2]), {}) if path[:2] == INPUT and path[2:] else {}
        names = [name for name in shared.get(below, ()) if _is_set(spec.config, prefix, (*INPUT, name))]
        if names:
            return show(relocated(Issue((*INPUT, names[0]), ""), prefix, spec.config).path)
    if path[:3] == (*INPUT, "taskset") and _of_list(spec.config, prefix):
        path = (*INPUT, "tasksets", 0)
    return show(relocated(Issue((*path, *parts), ""), prefix, spec.config).path)


def _is_set(config: Mapping[str, Any], prefix: FieldPath, path: FieldPath) -> bool:
    """True if the stage at `prefix`, or else the file's global section, sets the field at `path`."""
    for start in (prefix, ()):
        node: Any = config
        for key in (*start, *path):
            node = child(node, key)
        if node is not None:
            return True
    return False


def _of_list(config: Mapping[str, Any], prefix: FieldPath) -> bool:
    """True if the file lists its training tasksets under `tasksets` instead of naming one under `taskset`."""
    for start in (prefix, ()):
        node: Any = config
        for key in (*start, *INPUT):
            node = child(node, key)
        if isinstance(node, dict) and ("taskset" in node or "tasksets" in node):
            return "taskset" not in node
    return False
