"""Follows an experiment over restarts of the daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from rftd.daemon.client.client import Answer, Client
from rftd.daemon.client.replies import Page
from rftd.ops import limits
from rftd.ops.errors import UnreachableError

ENDED: Final = frozenset({"completed", "failed", "cancelled", "rejected"})


def follow(client: Client, name: str, *, after: str | None = None, patience_s: float) -> Iterator[Answer[Page]]:
    """The page whenever it changed, until the experiment has ended.

    A daemon that is being restarted is waited for. Raises UnreachableError once it was away for `patience_s`.
    """
    failures = 0
    seen_s = time.monotonic()
    wanted = name
    while True:
        try:
            for page in client.pages(wanted, after=after):
                failures, seen_s = 0, time.monotonic()
                # From here on by its id: another experiment may take the name.
                wanted, after = page.value.experiment.summary.id, None
                yield page
                if page.value.experiment.summary.state in ENDED:
                    return
        except UnreachableError:
            if wanted == name or time.monotonic() - seen_s > patience_s:
                raise
        failures += 1
        time.sleep(limits.RESTART_BACKOFF_S[min(failures, len(limits.RESTART_BACKOFF_S)) - 1])
