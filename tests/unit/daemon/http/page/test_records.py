"""Configuration, history and lineage as HTML: words of the API, addresses with every choice, texts that stay texts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.daemon.experiment_files import config
from synthetic.daemon.hostile_texts import HOSTILE

from rftd.daemon.http.api import record_pages
from rftd.daemon.http.page.configuration import section_of, sections_of
from rftd.daemon.http.page.history import grouped, words_of
from rftd.daemon.http.views.configuration import ResolvedField
from rftd.daemon.http.views.event_page import EventView

pytestmark = pytest.mark.anyio


async def page_of(client: httpx.AsyncClient, address: str) -> str:
    answer = await client.get(address)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), answer.text
    return answer.text


async def test_the_configuration_shows_each_field_of_the_api_with_its_origin(client: httpx.AsyncClient) -> None:
    fields = (await client.get("/v1/experiments/small/config")).json()["fields"]
    html = await page_of(client, "/runs/small/configuration")
    assert len(fields) > 50
    assert re.findall(r'<code title="([^"]+)">', html) == [field["field"] for field in fields]
    assert {field["origin"] for field in fields} >= {"default", "derived"}


async def test_a_search_leaves_fields_with_all_words_and_stays_in_every_link(client: httpx.AsyncClient) -> None:
    html = await page_of(client, "/runs/small/configuration?q=staleness+bound")
    shown = re.findall(r'<code title="([^"]+)">', html)
    assert shown
    assert all("staleness" in field for field in shown)
    assert "q=staleness+bound&amp;show=given" in html
    assert "No field matches" in await page_of(client, "/runs/small/configuration?q=no-such-field")


@pytest.mark.usefixtures("longer")
async def test_another_run_shows_differing_fields_and_figures_at_equal_steps(client: httpx.AsyncClient) -> None:
    differing = (await client.get("/v1/diff?name=small&name=longer")).json()["differences"]
    html = await page_of(client, "/runs/small/configuration?against=longer")
    table = html.partition('id="differences"')[2].partition("</table>")[0]
    assert re.findall(r'<th scope="row"><code>([^<]+)</code>', table) == [line["field"] for line in differing]
    assert "reward_mean, longer" in html
    for wrong in ("small", "nothing"):
        assert "No comparison" in await page_of(client, f"/runs/small/configuration?against={wrong}")


async def test_hostile_words_of_a_search_stay_text(client: httpx.AsyncClient) -> None:
    for title, words in HOSTILE.items():
        if "\x00" in words or not words.isprintable():
            continue
        html = (await client.get("/runs/small/configuration", params={"q": words, "against": words})).text
        assert "<script>alert" not in html, title
        assert "<img" not in html, title


async def test_every_event_is_in_one_group_and_older_pages_lead_to_the_first(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_pages, "EVENTS", 50)
    every = [event async for event in _events(client)]
    shown: list[str] = []
    address = "/runs/small/history"
    while address:
        html = await page_of(client, address)
        shown += re.findall(r"&#34;id&#34;: &#34;([^&]+)&#34;,\n  &#34;type", html)
        older = re.search(r'href="([^"]+)" data-key="k"', html)
        address = older[1].replace("&amp;", "&") if older else ""
    assert sorted(shown) == sorted(event["id"] for event in every)
    assert len(every) > 2 * record_pages.EVENTS


async def _events(client: httpx.AsyncClient) -> AsyncIterator[dict[str, Any]]:
    cursor = None
    more = True
    while more:
        page = (await client.get("/v1/experiments/small/events", params={"cursor": cursor} if cursor else {})).json()
        for event in page["items"]:
            yield event
        cursor, more = page["next"], page["more"]


async def test_pages_before_a_page_are_those_that_lead_to_it(client: httpx.AsyncClient) -> None:
    path = "/v1/experiments/small/events"
    first = (await client.get(path, params={"limit": 7})).json()
    second = (await client.get(path, params={"limit": 7, "cursor": first["next"]})).json()
    back = (await client.get(path, params={"limit": 7, "before": second["previous"]})).json()
    assert back["items"] == first["items"]
    refused = await client.get(path, params={"before": second["previous"], "newest": 3})
    assert (refused.status_code, refused.json()["field"]) == (422, "newest")


async def test_events_of_one_type_as_lines_and_as_json(client: httpx.AsyncClient) -> None:
    html = await page_of(client, "/runs/small/history?form=all&type=step.completed")
    lines = re.findall(r'class="type[^"]*">([^<]+)<', html)
    assert lines
    assert set(lines) == {"step.completed"}
    assert "&#34;payload&#34;" in await page_of(client, "/runs/small/history?form=json&begin=first")
    refused = await client.get("/runs/small/history?type=no.such")
    assert (refused.status_code, refused.headers["content-type"]) == (422, "text/html; charset=utf-8")


async def test_the_lineage_of_a_weight_version_is_a_tree_of_links(client: httpx.AsyncClient) -> None:
    graph = (await client.get("/v1/lineage?id=small/weights/4")).json()
    html = await page_of(client, "/runs/small/lineage?id=small/weights/4")
    assert "made of" in html
    assert "became" in html
    linked = {unquote(id) for id in re.findall(r"/lineage\?id=([^\"&]+)", html)}
    assert linked >= {node["id"] for node in graph["nodes"] if node["id"] != graph["root"]}
    assert "Not found" in await page_of(client, "/runs/small/lineage?id=nothing/step/1")
    newest = await page_of(client, "/runs/small/lineage")
    assert 'class="nd root"' in newest


async def test_the_timeline_tells_the_trainers_time_in_words(client: httpx.AsyncClient) -> None:
    idle = (await client.get("/v1/experiments/small/timeline")).json()["idle"]
    html = await page_of(client, "/runs/small/timeline")
    sentence = re.search(r'id="shares".*?<p>([^<]+)</p>', html, re.DOTALL)
    assert sentence is not None
    assert re.search(r"the trainer trained \d+\u202f% of the time", sentence[1])
    assert min(len(idle), 10) == len(re.findall(r"/rollouts\?step=", html))


async def test_a_run_without_a_step_has_every_page(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    answer = await client.post("/v1/experiments", json={"config": config(name="still")})
    assert answer.status_code == 202, answer.text
    await parts.projector.catch_up()
    for page in ("configuration", "history", "lineage", "timeline"):
        assert "still" in await page_of(client, f"/runs/{answer.json()['id']}/{page}")


def test_hostile_payloads_become_words_and_never_fail() -> None:
    for words in HOSTILE.values():
        assert words_of({"reason": words, "code": 7, "list": [words], "worker": "0" * 8}).startswith("code 7")
    event = EventView(
        id="1", type="strange", version=1, time="", position="", source="", role="", epoch=0, payload={"step": "x"}
    )
    assert [group.title for group in grouped([event], "run")] == ["Life of the run"]


def test_fields_stand_in_the_section_of_their_stage() -> None:
    assert section_of("stages[1].buffer.total_steps") == "stages[1].buffer"
    assert section_of("derived.stages.rft.batch.tasks") == "derived.stages.rft.batch"
    assert section_of("model.model_path") == "model"
    assert section_of("name") == "experiment"
    text = "<b>{'a': 1}</b>"
    field = ResolvedField(field="sources.x", value={"code": text}, origin="file", text="the file")
    [section] = sections_of([field], "CODE", "given")
    assert (section.title, section.lines[0].key) == ("sources", "x")
    assert sections_of([field], "", "default") == []
