"""`specification`: the resolved experiment behind a name, read from the log through the API."""

from __future__ import annotations

from typing import Final

from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views.events import events
from rftd.ops.decoding import converted
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import joined

_SUBMISSIONS: Final = 100
"""Maximum number of submissions of one experiment considered: one, or its two halves, each possibly repeated."""


def specification(client: Client, id: str) -> ExperimentSpec | None:
    """Returns the experiment's specification from the log; None if the log has none any more."""
    page = client.ask(events, name=id, type=["experiment.submitted"], limit=_SUBMISSIONS, full=True).value
    if not page.items:
        return None
    spec, *more = (converted(submission.payload["spec"], ExperimentSpec) for submission in page.items)
    for half in more:
        joined_spec = joined(spec, half)
        spec = joined_spec if isinstance(joined_spec, ExperimentSpec) else spec
    return spec
