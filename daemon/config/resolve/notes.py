"""Collects what is wrong and what was changed while an experiment is resolved."""

from __future__ import annotations

from dataclasses import dataclass, field

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, FieldError, Issue


@dataclass(slots=True)
class Notes:
    """Issues name fields as seen from the stage; warnings are sentences, each kept once."""

    issues: list[Issue] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def wrong(self, path: FieldPath, what: str, fix: str | None = None, kind: type[FieldError] = Contradiction) -> None:
        """A field, or a pair of them, that cannot hold."""
        self.issues.append(Issue(path, what, fix, kind))

    def warn(self, text: str) -> None:
        """Something was changed or has no effect."""
        if text not in self.warnings:
            self.warnings.append(text)
