"""The list of runs as HTML: hostile texts stay texts, forks stand below parents, a search becomes parameters."""

from __future__ import annotations

from html.parser import HTMLParser

import httpx
import msgspec
import pytest
from synthetic.daemon.hostile_texts import HOSTILE

from rftd.daemon.http.page.formats import scale_of
from rftd.daemon.http.page.rendering import render
from rftd.daemon.http.page.run_list import as_tree, parameters_of
from rftd.daemon.http.page.steering import acts_of
from rftd.ops.clock import SystemClock
from rftd.storage.queries.experiments import ExperimentSummary
from rftd.storage.queries.run_figures import HeldOutScore
from rftd.streams.folds.spine import Status

RUN = ExperimentSummary(
    id="r",
    name="sums",
    project="p",
    state="running",
    reason=None,
    code=None,
    kept="here",
    kept_path=None,
    stage="rft",
    step=3,
    total_steps=9,
    generation=1,
    submitted_ns=1,
    started_ns=2,
    state_ns=3,
    labels={},
    priority=0,
    queue_position=None,
    parent=None,
    forked_step=None,
)

SCORE = HeldOutScore(score=0.5, version=3, stderr=0.25, change=-0.125)


class Tags(HTMLParser):
    """Names of elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(f"@{name}" for name, _ in attrs)}


def page_of(*runs: ExperimentSummary) -> str:
    return render(
        "runs.html",
        SystemClock(),
        rows=as_tree(runs),
        states={"running": len(runs)},
        scale=scale_of([run.reward_curve for run in runs]),
        next=None,
        json="/v1/experiments",
        url=lambda **changed: "/",
        acts_of=acts_of,
        refusal=None,
        q="",
        show="all",
        order="newest",
    )


def tags_of(html: str) -> set[str]:
    parser = Tags()
    parser.feed(html)
    return parser.names


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_adds_no_element_and_no_attribute(words: str) -> None:
    def named(text: str) -> str:
        return page_of(
            msgspec.structs.replace(
                RUN,
                name=text,
                project=text,
                state="paused",
                reason=text,
                signal=text,
                stage=text,
                labels={text: text},
                held_out={text: SCORE},
            )
        )

    assert tags_of(named(words)) == tags_of(named("plain"))


def test_a_fork_stands_below_its_parent_wherever_it_was_in_the_list() -> None:
    fork = msgspec.structs.replace(RUN, id="f", parent="r")
    grandchild = msgspec.structs.replace(RUN, id="g", parent="f")
    orphan = msgspec.structs.replace(RUN, id="o", parent="elsewhere")
    rows = [(row.depth, row.run.id) for row in as_tree([grandchild, orphan, fork, RUN])]
    assert rows == [(0, "o"), (0, "r"), (1, "f"), (2, "g")]


def test_words_of_a_search_become_parameters_of_the_list() -> None:
    wanted = parameters_of("sums team=math state:paused signal:lost 7b", "all")
    assert wanted == {
        "state": [Status.PAUSED],
        "label": ["team=math"],
        "project": None,
        "words": "sums 7b",
        "signal": "lost",
    }
    assert parameters_of("", "ended")["state"] == [
        Status.COMPLETED,
        Status.FAILED,
        Status.CANCELLED,
        Status.REJECTED,
    ]


@pytest.mark.anyio
async def test_a_run_answers_html_and_an_unknown_one_is_a_page_too(client: httpx.AsyncClient) -> None:
    answer = await client.get("/runs/small?metric=%3Cscript%3E&metric=loss")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<script>" not in answer.text
    missing = await client.get("/runs/%3Cimg%20src=x%3E")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "<img" not in missing.text


@pytest.mark.anyio
async def test_the_list_answers_html_and_an_error_is_a_page_too(client: httpx.AsyncClient) -> None:
    answer = await client.get("/?q=small")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "small" in answer.text
    wrong = await client.get("/?cursor=nonsense")
    assert (wrong.status_code, wrong.headers["content-type"]) == (400, "text/html; charset=utf-8")


def test_many_clipped_tokens_are_off_policy_unless_nothing_is_learnt() -> None:
    run = msgspec.structs.replace(RUN, reward_curve=[0.1, 0.2], clipped=0.3)
    assert "off-policy" in page_of(run)
    assert "off-policy" not in page_of(msgspec.structs.replace(run, clipped=0.2))
    assert "off-policy" not in page_of(msgspec.structs.replace(run, signal="rewards_equal"))


def test_a_badge_leads_to_the_events_or_the_curve_behind() -> None:
    run = msgspec.structs.replace(RUN, reward_curve=[0.1, 0.2], clipped=0.3)
    assert f'href="/runs/{run.id}?metric=actor/pg_clipfrac#curves"' in page_of(run)
    for cause in ("solved", "rewards_equal"):
        assert f'href="/runs/{run.id}/history?type=signal"' in page_of(msgspec.structs.replace(run, signal=cause))


def test_a_held_out_score_has_its_error_and_its_change() -> None:
    html = page_of(msgspec.structs.replace(RUN, held_out={"sums": SCORE}))
    assert "0.500" in html
    assert "± 0.250" in html
    assert "−0.125" in html
