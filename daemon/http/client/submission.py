"""`submission_of`: an experiment file, or a mapping with an equal content, in the daemon's form."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rftd.ops.errors import UsageError

if TYPE_CHECKING:
    from rftd.daemon.config.loading import Submission


Part = str | Callable[..., Any]
"""A reward or a workflow: a registered name, `PATH.py:NAME`, or a function or class of the program."""


def submission_of(
    experiment: str | os.PathLike[str] | Mapping[str, Any],
    fields: Mapping[str, Any],
    *,
    reward: Part | None = None,
    workflow: Part | None = None,
) -> Submission:
    """Returns the submission of a file or of a mapping, with `fields` set, see `overrides_of`.

    `reward` and `workflow` replace those of all tasksets. Paths are relative to the working directory, as on the
    command line. Raises ConfigErrors, and UsageError for a function that cannot travel.
    """
    from rftd.daemon.config.loading import load_text, read_text
    from rftd.daemon.config.yaml_source import parse_yaml
    from rftd.workers.devices.host import ANY_HOST

    if isinstance(experiment, Mapping):
        # Every JSON text is YAML.
        text, origin = msgspec.json.encode(experiment).decode(), "<mapping>"
    else:
        text, origin = read_text(Path(experiment)), os.fspath(experiment)
    overrides = overrides_of(fields)
    if reward is not None or workflow is not None:
        tree = parse_yaml(text, origin)[0]
        overrides += _part_overrides(tree if isinstance(tree, dict) else {}, {_REWARD: reward, _WORKFLOW: workflow})
    return load_text(text, origin, overrides=overrides, host=ANY_HOST, drafts=True)


_REWARD: Final = "default_reward_fn_type"
"""Name of the field with a taskset's reward."""
_WORKFLOW: Final = "default_workflow_type"
"""Name of the field with a taskset's workflow."""
_INPUT: Final = "buffer.explorer_input"
"""Path of the section with the tasksets."""


def _part_overrides(tree: dict[str, Any], parts: Mapping[str, Part | None]) -> list[str]:
    """Returns overrides setting a reward or workflow for all tasksets, with the source of each function."""
    from rftd.daemon.http.client.function_source import function_source
    from rftd.workers.workflows.marks import check_mark

    sources = dict(tree.get("sources") or {})
    overrides: list[str] = []
    for field, part in parts.items():
        if part is None:
            continue
        name = part
        if not isinstance(part, str):
            check_mark("reward" if field == _REWARD else "workflow", part)
            text = function_source(part)
            file = f"{part.__name__}.py"
            if sources.setdefault(file, text) != text:
                raise UsageError(f"two sources are called {file}", field=field, fix="rename one of the functions")
            name = f"{file}:{part.__name__}"
        setting = msgspec.json.encode(name).decode()
        overrides.append(f"{_INPUT}.{field}={setting}")
        # The name of a taskset, or of a stage's, would otherwise win.
        overrides += [f"{path}={setting}" for path in _paths_of_field(tree, "", field) if path != f"{_INPUT}.{field}"]
    return [*overrides, f"sources={msgspec.json.encode(sources).decode()}"] if sources else overrides


def _paths_of_field(node: Any, path: str, field: str) -> Iterator[str]:
    """Yields the paths at which a field is written."""
    for key, below in node.items() if isinstance(node, dict) else ():
        here = f"{path}.{key}".lstrip(".")
        if key == field:
            yield here
        elif isinstance(below, list):
            for number, section in enumerate(below):
                yield from _paths_of_field(section, f"{here}[{number}]", field)
        else:
            yield from _paths_of_field(below, here, field)


def overrides_of(fields: Mapping[str, Any]) -> list[str]:
    """Returns fields as `-s` overrides: `buffer__batch_size=8`, `buffer={"batch_size": 8}` or a dotted key."""
    return [f"{path}={msgspec.json.encode(setting).decode()}" for path, setting in _flat_fields("", fields)]


def _flat_fields(prefix: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the dotted path and the content of each field, nested mappings included."""
    for key, setting in fields.items():
        path = prefix + key.replace("__", ".")
        if isinstance(setting, Mapping) and setting:
            yield from _flat_fields(f"{path}.", setting)
        else:
            yield path, setting
