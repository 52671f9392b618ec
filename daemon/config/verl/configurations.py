"""`configuration` is what one of veRL's own configurations gives beyond `ppo_trainer`, whose values the table has."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("configurations.json")
"""Made from the installed package by tests/golden/make_verl_configurations.py."""


@functools.cache
def _all() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def configuration(name: str) -> Mapping[str, Any] | None:
    """The values by their keys; None if veRL has no configuration of that name."""
    return _all().get(name)


def configuration_names() -> list[str]:
    """The names of veRL's own configurations."""
    return list(_all())
