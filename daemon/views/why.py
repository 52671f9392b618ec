"""The read of what each role of an experiment does or waits for."""

from __future__ import annotations

from rftd.daemon.views.route import After, Daemon, Name, read
from rftd.daemon.why.wait import Why


@read("/v1/experiments/{name}/why", Why, tag="experiments")
async def why(daemon: Daemon, name: Name, after: After = None) -> Why:
    """Each role's work or wait, since when, for whom, and what would unblock it; worst first."""
    return await daemon.operations.why(await daemon.find(name, after))
