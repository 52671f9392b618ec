"""Requests of other programs that were refused: listed newest first, whatever strangers wrote into them."""

from __future__ import annotations

from uuid import UUID

import httpx
import msgspec
import pytest
from synthetic.daemon.daemon_parts import DaemonParts

from rftd.daemon.cli.verbs.ls import refusal_lines
from rftd.daemon.http.views.refusals import RefusedRequest
from rftd.ops.clock import ManualClock
from rftd.ops.ids import SystemIds
from rftd.streams.events.experiment import ExperimentRejected, RequestRef
from rftd.streams.folds import requests as fold
from rftd.streams.log.codec import Writer

pytestmark = pytest.mark.anyio
COUNT = 9


async def test_the_newest_come_first_whatever_partition_has_them(
    client: httpx.AsyncClient, parts: DaemonParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "REMEMBERED", COUNT - 1)
    clock = ManualClock()
    writer = Writer(source="daemon", clock=clock, ids=SystemIds(clock))
    assert (await client.get("/v1/requests/refused")).json() == {"items": []}
    for number in range(COUNT):
        clock.advance(1.0)
        request = RequestRef(place=f"rftd.requests/0@{number}", type="t", source="/ci", id=str(number))
        event = ExperimentRejected(code="RFTD-USE-001", reason="no", request=request)
        await parts.log.append([writer.draft(event, experiment=UUID(int=number << 40))])
    # What the daemon itself refused of a submission answers no record.
    await parts.log.append([writer.draft(ExperimentRejected(code="c", reason="r"), experiment=UUID(int=1))])
    listed = (await client.get("/v1/requests/refused")).json()["items"]
    assert [each["id"] for each in listed] == [str(number) for number in range(COUNT - 1, 0, -1)]
    assert (listed[0]["place"], listed[0]["reason"]) == (f"rftd.requests/0@{COUNT - 1}", "no")
    newest = (await client.get("/v1/requests/refused", params={"limit": 2})).json()["items"]
    assert newest == listed[:2]


def test_what_a_stranger_wrote_is_no_line_of_ours() -> None:
    asked = RefusedRequest(
        place="rftd.requests/2@6", type="", source="/s", id="7\x1b[31m\nevil", code="C", reason="a\nb\x1b[2J",
        refused_ns=0,
    )  # fmt: skip
    head, *reasons = refusal_lines([asked, msgspec.structs.replace(asked, id="8")])
    assert "(no type)  source=/s id=7\\x1b[31m\\nevil  rftd.requests/2@6" in head
    assert reasons[:2] == ["    C: a", "    b\\x1b[2J"]
