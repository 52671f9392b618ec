"""Collects what is wrong and what was changed while an experiment is resolved."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, FieldError, Issue, UnknownField


@dataclass(slots=True)
class Notes:
    """Issues name fields as seen from the stage; warnings are sentences, each kept once."""

    issues: list[Issue] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def wrong(self, path: FieldPath, what: str, fix: str | None = None, kind: type[FieldError] = Contradiction) -> None:
        """A field, or a pair of them, that cannot hold."""
        self.issues.append(Issue(path, what, fix, kind))

    def unknown(self, path: FieldPath, what: str, known: Iterable[str]) -> None:
        """A name that nothing takes, with the nearest of those that something does."""
        known = list(known)
        near = difflib.get_close_matches(str(path[-1]), known, 1)
        fix = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}" if known else "leave it out"
        self.issues.append(Issue(path, what, fix, UnknownField, at_key=True))

    def warn(self, text: str) -> None:
        """Something was changed or has no effect."""
        if text not in self.warnings:
            self.warnings.append(text)
