"""A daemon that answers itself late, as after a suspended machine, asks again; only a dead server is an error."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rftd.daemon.serve.own_answer import own_readiness
from rftd.ops.clock import ManualClock
from rftd.ops.errors import UnreachableError
from rftd.ops.logs import logger

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1:7070"


async def answered(*happenings: Exception | int) -> tuple[int, list[str]]:
    """The status of the answer after `happenings`, one for each question, and the paths that were asked for."""
    coming: Iterator[Exception | int] = iter(happenings)
    paths: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        happening = next(coming)
        if isinstance(happening, Exception):
            raise happening
        return httpx.Response(happening)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        answer = await own_readiness(client, URL, clock=ManualClock(), logger=logger())
    return answer.status_code, paths


@pytest.mark.parametrize("status", [200, 503])
async def test_it_is_asked_until_it_answers(status: int) -> None:
    late = (httpx.ReadTimeout("late"), httpx.RemoteProtocolError("cut"), httpx.ConnectTimeout(""), httpx.ReadError(""))
    assert await answered(*late, status) == (status, ["/readyz"] * 5)


async def test_where_nobody_listens_it_is_an_error() -> None:
    with pytest.raises(UnreachableError, match="does not answer itself") as refused:
        await answered(httpx.ReadTimeout("late"), httpx.ConnectError("refused"))
    assert refused.value.where == URL
