"""An experiment file that a verb was given: its text, read once, and what it says for workers on a host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rftd.daemon.config.loading import Submission
    from rftd.workers.devices.host import Host


def read_experiment(file: str) -> tuple[str, str]:
    """The text of FILE, or of standard input for `-`, and the name that errors have for it. Raises ConfigErrors."""
    from rftd.daemon.config.loading import read_stream, read_text

    if file == "-":
        return read_stream(sys.stdin.buffer, "<stdin>"), "<stdin>"
    return read_text(Path(file)), file


def load_experiment(text: str, origin: str, overrides: tuple[str, ...], host: Host, drafts: bool) -> Submission:
    """The submission, for workers on `host`; see `rftd.daemon.config.loading.load_text`. Raises ConfigErrors."""
    from rftd.daemon.config.loading import load_text

    return load_text(text, origin, overrides=overrides, host=host, drafts=drafts)
