"""The ledger: which seeds were run, on which revisions, and which of them broke a promise."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


class Ledger:
    """A JSON file beside the tests; `make torture` adds to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pages: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def total(self, mode: str) -> int:
        """Seeds of a mode that were run so far."""
        return int(self._pages.get(mode, {}).get("seeds", 0))

    def fresh(self, mode: str, count: int) -> list[int]:
        """The next seeds that nobody ran; those of the test suite lie below them."""
        first = 1_000_000 + self.total(mode)
        return list(range(first, first + count))

    def note(self, mode: str, seeds: list[int], violations: list[int], revision: str) -> None:
        """Adds a run of fresh seeds."""
        page = self._pages.setdefault(mode, {"seeds": 0, "runs": []})
        page["seeds"] += len(seeds)
        page["runs"].append(
            {"first": seeds[0], "seeds": len(seeds), "revision": revision, "violations": violations[:100]}
        )
        self._path.write_text(json.dumps(self._pages, indent=1) + "\n")


def revision(folder: Path) -> str:
    """The revision of the source, or "unknown" outside of a repository."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()
