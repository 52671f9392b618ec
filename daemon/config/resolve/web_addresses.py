"""`check_web_address` checks an http address written in the file."""

from __future__ import annotations

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Notes, WrongValue
from rftd.ops.errors import ConfigError
from rftd.ops.outbound import web_address


def check_web_address(text: str, path: FieldPath, notes: Notes) -> None:
    """Adds an issue at `path` unless `text` is an http address with a host, and without user, password or
    parameters.
    """
    try:
        web_address(text, field=show(path))
    except ConfigError as error:
        notes.wrong(path, error.what, error.fix or "", WrongValue)
