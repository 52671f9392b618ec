"""Rollouts, drops and evaluations as HTML: texts stay texts, marks name what they mark, keys lead where they say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from synthetic.daemon.daemon_parts import DaemonParts, open_daemon
from synthetic.daemon.hostile_texts import HOSTILE
from synthetic.log.text_run import SyntheticRollout, TextRun, text_run, tokenizer_json

from rftd.daemon.http.page.marked_text import words_alone
from rftd.daemon.http.page.rollouts import groups_of
from rftd.storage.queries.experiences import ExperienceRow
from rftd.streams.events.task import TaskLeased

pytestmark = pytest.mark.anyio
PLAIN = "plain words"
SPOKEN = {name: words for name, words in HOSTILE.items() if all(ord(character) < 256 for character in words)}
"""The texts that a tokenizer of 256 characters can speak."""
DROPS = ("", "?stage=1")


class Tags(HTMLParser):
    """Names of elements and attributes of a page, and links by key."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.keys: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(f"@{name}" for name, _ in attrs)}
        attributes = dict(attrs)
        if attributes.get("data-key") and attributes.get("href"):
            self.keys[str(attributes["data-key"])] = str(attributes["href"])


@pytest.fixture
async def texts(parts: DaemonParts, tmp_path: Path) -> TextRun:
    """A run of texts in the parts: a group with three answers, then one with a single answer."""
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    tool = "<tool_response>5</tool_response>"
    wrong = SyntheticRollout(parts=(("the sum is 3 ", True), (tool, False), ("so 7", True)), reward=0.0, extracted="7")
    run.group([wrong, SyntheticRollout(), SyntheticRollout(parts=(("the sum is 3", True),), reward=0.5)], failed=1)
    run.group([SyntheticRollout(prompt="2+2=", parts=(("4", True),))], failed=3)
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    return run


async def page_of(client: httpx.AsyncClient, address: str) -> str:
    answer = await client.get(address)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), answer.text
    return answer.text


async def ids_of(client: httpx.AsyncClient) -> list[str]:
    """The ids of the run's rollouts, oldest first."""
    page = await client.get("/v1/experiments/texts/experiences?order=oldest")
    return [row["id"] for row in page.json()["items"]]


async def test_an_answer_tells_drawn_text_truth_extract_and_words_of_its_own(
    client: httpx.AsyncClient, texts: TextRun
) -> None:
    wrong = (await ids_of(client))[0]
    html = await page_of(client, f"/runs/texts/rollouts?id={wrong}")
    assert re.findall(r'class="turn (\w+)"><div class="who">(\w+)', html) == [
        ("written", "prompt"),
        ("drawn", "model"),
        ("written", "tool"),
        ("drawn", "model"),
    ]
    assert '<mark class="x no" title="what the reward extracted">7</mark>' in html
    assert re.findall(r"<mark>(\w+)</mark>", html) == ["so", "underlined"]
    assert "The answer has the truth, 3, and the reward extracted 7" in html
    assert "≠ truth" in html
    assert html.count('class="cell big failed"') == 1


async def test_keys_lead_through_group_and_list_and_to_best_and_worst(
    client: httpx.AsyncClient, texts: TextRun
) -> None:
    worst, best, middle, single = await ids_of(client)
    keys = Tags(await page_of(client, f"/runs/texts/rollouts?id={middle}&order=oldest")).keys
    assert {key: address.rpartition("id=")[2] for key, address in keys.items() if key in "jkbw]["} == {
        "k": best,
        "j": single,
        "b": best,
        "w": worst,
        "]": single,
    }


async def test_filters_stay_in_every_address_and_usual_choices_do_not(client: httpx.AsyncClient) -> None:
    html = await page_of(client, "/runs/small/rollouts?order=-reward&state=retired&colour=length")
    links = set(re.findall(r'class="cell[^"]*"[^>]* href="([^"]+)"', html))
    assert links
    for link in links:
        assert "order=-reward&amp;state=retired" in link
        assert "cursor" not in link
        assert "chars" not in link


async def test_a_hostile_answer_adds_no_element_and_no_attribute(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    _of_one_row(run)
    for words in (PLAIN, *SPOKEN.values()):
        spoken = SyntheticRollout(prompt=words, parts=((words, True), (words, False)), extracted=words, reward=0.0)
        run.group([spoken, SyntheticRollout(parts=(("else", True),))], failed=2)
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    plain, *hostile = (await ids_of(client))[::2]
    assert len(hostile) == len(SPOKEN)
    names = Tags(await page_of(client, f"/runs/texts/rollouts?id={plain}")).names
    for id, title in zip(hostile, SPOKEN, strict=True):
        note = {"experience": id, "note": SPOKEN[title].replace("\x00", ""), "labels": {"key": title}}
        assert (await client.post("/v1/experiments/texts/annotate", json=note)).status_code < 300
        html = await page_of(client, f"/runs/texts/rollouts?id={id}")
        assert Tags(html).names == names, title
        assert "<script>alert" not in html


def _of_one_row(run: TextRun) -> None:
    """Makes every task of a run one of the first row."""
    write = run.recorder.write

    def written(event: Any, *args: Any, **settings: Any) -> Any:
        return write(
            msgspec.structs.replace(event, row=0) if isinstance(event, TaskLeased) else event, *args, **settings
        )

    run.recorder.write = written  # type: ignore[method-assign]


async def test_a_search_without_a_tokenizer_tells_why_and_keeps_the_list(client: httpx.AsyncClient) -> None:
    html = await page_of(client, "/runs/small/rollouts?q=cat&step=3")
    assert "no copy of its tokenizer" in html
    assert 'class="cell q' in html


async def test_a_search_shows_passages_in_place_of_the_groups(tmp_path: Path) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    run.group([SyntheticRollout(parts=((text, True),)) for text in ("the sum is 3", "5", "sums", "a sum")])
    run.plan(stage=1, take=4)
    run.complete(stage=1, items=4)
    async with open_daemon(tmp_path, run=run) as parts, parts.client() as client:
        step = (await client.get("/v1/experiments/texts/experiences?limit=1")).json()["items"][0]["step"]
        html = await page_of(client, f"/runs/texts/rollouts?q=sum&step={step}")
    assert "answers have the words" in html
    assert html.count('id="m-') == 2


async def test_a_step_without_rollouts_and_a_run_without_any_say_so(client: httpx.AsyncClient, texts: TextRun) -> None:
    assert "No rollout of this run was last trained in step 99" in await page_of(client, "/runs/texts/rollouts?step=99")
    assert "No rollout matches" in await page_of(client, "/runs/texts/rollouts?state=late")
    missing = await client.get("/runs/texts/rollouts?id=ffffffffffff")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "text/html; charset=utf-8")


@pytest.mark.parametrize("query", DROPS)
async def test_the_books_on_the_page_of_drops_are_those_of_the_api(client: httpx.AsyncClient, query: str) -> None:
    books = (await client.get("/v1/experiments/small")).json()["experiment"]["books"]
    html = await page_of(client, f"/runs/small/drops{query}")
    assert f"<b>{books['produced']}</b> produced" in html
    assert "they balance" in html


async def test_two_versions_stand_side_by_side_with_won_lost_and_same(client: httpx.AsyncClient) -> None:
    html = await page_of(client, "/runs/small/evaluations?version=4&against=3")
    assert re.findall(r"<b>(\d+)</b> (won|lost|same)", html) == [("1", "won"), ("1", "lost"), ("2", "same")]
    assert "version 3" in html
    row = await page_of(client, "/runs/small/held-out/1")
    assert "The same question at every version" in row


async def test_prompts_name_the_row_and_truth_of_each_group(client: httpx.AsyncClient, texts: TextRun) -> None:
    rows = (await client.get("/v1/experiments/texts/experiences?order=oldest")).json()["items"]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    answer = await client.get("/v1/experiments/texts/prompts", params={"group": groups, "chars": 3})
    assert [(item["group"], item["row"], item["prompt"], item["truth"]) for item in answer.json()["items"]] == [
        (groups[0], 0, "2+1", "3"),
        (groups[1], 1, "2+2", "4"),
    ]


def test_words_alone_are_in_no_other_answer_whatever_their_case() -> None:
    assert words_alone("The sum is 3.5 now", ("the SUM", "is 3")) == {"3.5", "now"}
    assert words_alone("same", ("same",)) == frozenset()


async def test_equal_lengths_are_neither_long_nor_short(client: httpx.AsyncClient, texts: TextRun) -> None:
    columns = (await client.get("/v1/experiments/texts/experiences?limit=1")).json()["items"][0]
    row = msgspec.convert({**columns, "produced_ns": 0}, ExperienceRow)
    longer = msgspec.structs.replace(row, rollout=row.rollout + 1, response_tokens=row.response_tokens + 8)
    same, (short, long) = groups_of([row], "length")[0].cells, groups_of([row, longer], "length")[0].cells
    assert [cell.level for cell in (*same, short, long)] == [2, 4, 0]
