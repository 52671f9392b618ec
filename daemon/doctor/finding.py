"""What one check of the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `fix` says what to do if it is not `ok`."""

    check: str
    status: Literal["ok", "warn", "fail"]
    what: str
    fix: str = ""
