"""What `rftd archive`, `rftd restore` and `rftd rm` share: a command to the daemon that may take long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import click

from rftd.daemon.settings import Settings

LONGEST_S: Final = 3600.0
"""Checkpoints are copied, and read again to check the copy."""

ENDED: Final = ("completed", "failed", "cancelled", "rejected")


def keep(
    settings: Settings, verb: str, name: str, body: Mapping[str, Any], *, target: str, request_id: str | None
) -> dict[str, Any]:
    """Sends the command; what to answer. An experiment that is in its target state already is no error."""
    from rftd.daemon.client.client import Client
    from rftd.ops.clock import SystemClock
    from rftd.ops.errors import ConflictError
    from rftd.ops.ids import SystemIds

    key = request_id or str(SystemIds(SystemClock()).new())
    with Client(replace(settings, timeout_s=max(settings.timeout_s, LONGEST_S))) as client:
        try:
            sent = client.keep(verb, name, body, request_id=key).value
        except ConflictError:
            summary = client.summary(name).value
            if summary.kept != target or summary.state not in ENDED:
                raise
            known = {"name": summary.name, "id": summary.id, "files": target, "path": summary.kept_path}
            return {**known, "already": True, "event": None, "position": None}
        summary = client.summary(sent.id, after=sent.position).value
    done = {"name": summary.name, "id": summary.id, "files": summary.kept, "path": summary.kept_path}
    return {**done, "already": False, "event": sent.event, "position": sent.position}


def tell(settings: Settings, done: Mapping[str, Any]) -> None:
    """Prints the answer of one command."""
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(dict(done), settings)
    elif settings.verbosity >= 0:
        already = "already " if done["already"] else ""
        click.echo(f"{done['name']}  {already}{done['files']}  {done['path'] or ''}".rstrip())
