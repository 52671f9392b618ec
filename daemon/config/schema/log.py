"""Section `log`: how much the workers say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from rftd.daemon.config.schema.section import Section, inert

Level = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]


class Log(Section):
    """`log`."""

    level: Level = inert("INFO")
    group_by_node: bool = inert(False)
