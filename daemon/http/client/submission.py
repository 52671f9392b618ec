"""`submission_of`: an experiment file, or a mapping with an equal content, in the daemon's form."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rftd.daemon.config.loading import Submission


def submission_of(experiment: str | os.PathLike[str] | Mapping[str, Any], fields: Mapping[str, Any]) -> Submission:
    """Returns the submission of a file or of a mapping, with `fields` set, see `overrides_of`. Raises ConfigErrors.

    Paths are relative to the working directory, as on the command line.
    """
    from rftd.daemon.config.loading import load_text, read_text
    from rftd.workers.devices.host import ANY_HOST

    if isinstance(experiment, Mapping):
        # Every JSON text is YAML.
        text, origin = msgspec.json.encode(experiment).decode(), "<mapping>"
    else:
        text, origin = read_text(Path(experiment)), os.fspath(experiment)
    return load_text(text, origin, overrides=overrides_of(fields), host=ANY_HOST, drafts=True)


def overrides_of(fields: Mapping[str, Any]) -> list[str]:
    """Returns fields as `-s` overrides: `buffer__batch_size=8`, `buffer={"batch_size": 8}` or a dotted key."""
    return [f"{path}={msgspec.json.encode(setting).decode()}" for path, setting in _leaves("", fields)]


def _leaves(prefix: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, setting in fields.items():
        path = prefix + key.replace("__", ".")
        if isinstance(setting, Mapping) and setting:
            yield from _leaves(f"{path}.", setting)
        else:
            yield path, setting
