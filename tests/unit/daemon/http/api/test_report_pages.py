"""Reports to share: a run, a group and several runs as files, by the daemon itself and with the rights of the asker."""

from __future__ import annotations

import re

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.daemon.hostile_texts import faults_of
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.client.html import Html, tag
from rftd.daemon.http.client.report import _document

pytestmark = pytest.mark.anyio


async def file_of(client: httpx.AsyncClient, path: str) -> str:
    """The report at an address: a file to keep, harmless and without any request."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith('attachment; filename="')
    assert answer.headers["content-type"].startswith("text/html")
    assert 'content="default-src &#x27;none&#x27;' in answer.text
    assert not re.search(r"<script|<link|<img|\ssrc=|\shref=", answer.text)
    assert faults_of(answer.text) == []
    return answer.text


async def test_a_run_and_several_runs_become_files(client: httpx.AsyncClient, longer: SyntheticRun) -> None:
    run = await file_of(client, "/runs/small/report")
    for title in ("Figures", "Curves", "Samples", "Evaluations", "Lineage", "Configuration"):
        assert f"<h2>{title}</h2>" in run
    assert run.count("<svg") >= 3
    compared = await file_of(client, "/report?name=small&name=longer")
    assert "<h1>small, longer</h1>" in compared
    assert "Differing fields" in compared
    assert "Figures at equal steps" in compared


async def test_a_group_becomes_a_file_with_each_answer(client: httpx.AsyncClient) -> None:
    row = (await client.get("/v1/experiments/small/experiences", params={"limit": 1})).json()["items"][0]
    members = (await client.get("/v1/experiments/small/experiences", params={"group": row["group"]})).json()["items"]
    group = await file_of(client, f"/runs/small/report?group={row['group']}")
    for member in members:
        assert member["id"][:8] in group


async def test_wrong_names_are_errors_and_a_stranger_gets_no_report(parts: DaemonParts) -> None:
    async with parts.client() as client:
        for path, status in (
            ("/runs/absent/report", 404),
            ("/runs/small/report?group=ffffffffffffffff", 404),
            ("/report?name=small", 422),
            ("/report?name=small&name=small", 422),
            ("/report", 422),
        ):
            answer = await client.get(path)
            assert answer.status_code == status, path
            assert answer.headers["content-type"].startswith("application/problem+json")


def test_texts_of_a_document_are_escaped_in_title_and_body() -> None:
    drawn = _document("</title><script>", tag("p", "<img src=x onerror=alert(1)>"), made="<b>")
    assert faults_of(drawn) == []
    assert Html("&lt;/title&gt;") in drawn
