"""`Findings`: everything that several checks of a specification refuse, each under its field in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, child, parse, show
from rftd.daemon.config.issue import ConfigErrors, Issue
from rftd.daemon.config.resolve.experiment import placed
from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.spec import ExperimentSpec, StageSpec

INPUT: Final[FieldPath] = ("buffer", "explorer_input")
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
"""Fields of a taskset that all of them may have from the section around them."""


class Findings:
    """Errors of checks that do not need each other; each is kept once, for stages share sections."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self.spec = spec
        self.errors: list[ConfigError | DataError] = []

    @contextmanager
    def of(self, stage: StageSpec, path: FieldPath = (), *, at: str = "") -> Iterator[None]:
        """Keeps a ConfigError or DataError that ends the block: about the field below `path` that it names, else `at`.

        A file or folder that cannot be read, as one without rights, is such an error too. What follows in the block is
        not checked; what follows the block is.
        """
        try:
            yield
        except (ConfigError, DataError) as error:
            self._keep(error, stage, path, error.field or at)
        except OSError as error:
            what = f"{error.filename!r} cannot be read: {error.strerror or error}"
            fix = "let the daemon's user and its workers' read it, or name another one"
            self._keep(DataError(what, fix=fix), stage, path, at)

    def _keep(self, error: ConfigError | DataError, stage: StageSpec, path: FieldPath, below: str) -> None:
        error.field = field_in(self.spec, stage, path, below)
        if not any((known.field, known.what) == (error.field, error.what) for known in self.errors):
            self.errors.append(error)

    def check(self) -> None:
        """Raises the error that was kept, or ConfigErrors with all of them."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ConfigErrors(self.errors)


def field_in(spec: ExperimentSpec, stage: StageSpec, path: FieldPath, below: str) -> str:
    """The field as the file has it: of the stage that sets it, else of the global sections."""
    stages = spec.config.get("stages") or []
    number = next((i for i, each in enumerate(stages) if each.get("stage_name") == stage.name), None)
    prefix: FieldPath = () if number is None else ("stages", number)
    # A key of digits, such as a token's id, is no place in a list.
    parts = (parse(below) if "[" in below else tuple(below.split(".")) if below else ()) or ()
    if not _given(spec.config, prefix, (*path, *parts)):
        shared = _SHARED.get(str(path[2]), {}) if path[:2] == INPUT and path[2:] else {}
        names = [name for name in shared.get(below, ()) if _given(spec.config, prefix, (*INPUT, name))]
        if names:
            return show(placed(Issue((*INPUT, names[0]), ""), prefix, spec.config).path)
    if path[:3] == (*INPUT, "taskset") and _of_list(spec.config, prefix):
        path = (*INPUT, "tasksets", 0)
    return show(placed(Issue((*path, *parts), ""), prefix, spec.config).path)


def _given(config: Mapping[str, Any], prefix: FieldPath, path: FieldPath) -> bool:
    """True if the stage or the global sections have the field."""
    for start in (prefix, ()):
        node: Any = config
        for part in (*start, *path):
            node = child(node, part)
        if node is not None:
            return True
    return False


def _of_list(config: Mapping[str, Any], prefix: FieldPath) -> bool:
    """True if the training taskset stands in `tasksets`."""
    for start in (prefix, ()):
        node: Any = config
        for part in (*start, *INPUT):
            node = child(node, part)
        if isinstance(node, dict) and ("taskset" in node or "tasksets" in node):
            return "taskset" not in node
    return False
