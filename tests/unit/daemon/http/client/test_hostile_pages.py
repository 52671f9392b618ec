"""Runs, rows and rollouts as HTML under foreign text: markup, control and bidirectional characters, 10 MB of it."""

from __future__ import annotations

from typing import TypeVar, cast

import msgspec
import pytest
from synthetic.daemon.command_line import Served
from synthetic.daemon.hostile_texts import HOSTILE, LONG, faults_of

from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.cards import group_card, rollout_card, run_card
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.html import curve, tag, text
from rftd.daemon.http.client.report import page_of, report_of
from rftd.daemon.http.client.rollouts import TextRollout
from rftd.daemon.http.client.rows import RowList
from rftd.daemon.http.views import experiments
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.ops.clock import SystemClock

T = TypeVar("T")
TEXTS = {**HOSTILE, "10 MB without a blank": LONG}
MOST_BYTES = 200_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ExperimentPage:
    from synthetic.daemon.served_daemon import served_daemon

    with served_daemon(tmp_path_factory.mktemp("served")) as served, Client(Settings(server=served.url), {}) as client:
        return client.ask(experiments.one, name="small").value


@pytest.mark.parametrize("words", TEXTS.values(), ids=TEXTS.keys())
def test_a_run_with_foreign_text_is_harmless_html(page: ExperimentPage, words: str) -> None:
    summary = msgspec.structs.replace(
        page.experiment.summary, name=words, stage=words, reason=words, code=words, labels={words: words}
    )
    hostile = msgspec.structs.replace(
        page,
        experiment=msgspec.structs.replace(page.experiment, summary=summary),
        waiting=words,
        evals=[msgspec.structs.replace(row, taskset=words) for row in page.evals],
    )
    shown = run_card(hostile)
    assert faults_of(shown) == []
    assert len(shown) < MOST_BYTES
    table = RowList.of([summary])._repr_html_()
    assert faults_of(table) == []
    assert len(table) < MOST_BYTES


@pytest.mark.parametrize("words", TEXTS.values(), ids=TEXTS.keys())
def test_a_group_of_rollouts_with_foreign_text_is_harmless_html(words: str) -> None:
    columns = {"id": words, "reward": 0.5, "finish": words, "state": words}
    cards = [rollout_card(columns, [("answer", words), (words[:1000], words)]) for _ in range(2)]
    shown = group_card(words, [(words[:1000], words)], cards)
    assert faults_of(shown) == []
    assert len(shown) < 2 * MOST_BYTES
    assert faults_of(curve([(0, 1.0), (1, float("nan")), (2, float("inf")), (3, 2.0)], label=words)) == []


def test_markup_stays_readable_as_text() -> None:
    assert tag("p", "<b>&", title='"') == '<p title="&quot;">&lt;b&gt;&amp;</p>'
    assert text("a\u202eb\x1b") == r"a\u202eb\x1b"
    assert text("abc", most=2) == "ab … 1 more characters"


def test_the_corpus_itself_is_harmful_unescaped() -> None:
    """The check must be able to fail."""
    harmless = {"attribute", "apostrophe", "entity", "link", "template", "newlines", "comment"}
    assert not [name for name, words in HOSTILE.items() if name not in harmless and not faults_of(f"<p>{words}</p>")]


def test_a_run_of_a_daemon_draws_itself(served: Served) -> None:
    with Client(Settings(server=served.url), {}) as client:
        shown = client.run("small")._repr_html_()
    assert faults_of(shown) == []
    assert "small" in shown
    assert "<svg" in shown


def test_a_report_holds_everything_and_fetches_nothing(served: Served) -> None:
    with Client(Settings(server=served.url), {}) as client:
        report = report_of(client, "small", clock=SystemClock(), version="0")
    assert faults_of(report) == []
    for title in ("Figures", "Curves", "Samples", "Evaluations", "Lineage", "Configuration"):
        assert f"<h2>{title}</h2>" in report
    assert report.count("<svg") >= 3
    assert "total_steps" in report


@pytest.mark.parametrize("words", TEXTS.values(), ids=TEXTS.keys())
def test_a_report_of_a_hostile_run_is_harmless(served: Served, page: ExperimentPage, words: str) -> None:
    """Every text of the answers is foreign: names, reasons, rewards' names, prompts, answers, and configuration."""

    summary = page.experiment.summary
    with Client(Settings(server=served.url), {}) as client:
        run = client.run("small")
        texts = [foreign(rollout.view, words) for rollout in run.rollouts(limit=2)]
        drawn = page_of(
            foreign(page, words),
            curves=[],
            samples=[TextRollout(view)._repr_html_() for view in texts],
            evals=RowList.of([foreign(row, words) for row in page.evals]),
            ancestors=[foreign(summary, words)],
            made=words,
        )
    assert faults_of(drawn) == []
    assert len(drawn) < 60 * MOST_BYTES


def foreign(view: T, words: str) -> T:
    """The view with these words in place of each of its texts, at any depth."""
    if isinstance(view, str):
        return cast(T, words)
    if isinstance(view, list):
        return cast(T, [foreign(element, words) for element in view])
    if isinstance(view, dict):
        return cast(T, {foreign(key, words): foreign(element, words) for key, element in view.items()})
    if isinstance(view, msgspec.Struct):
        fields = {name: foreign(getattr(view, name), words) for name in view.__struct_fields__}
        return cast(T, msgspec.structs.replace(view, **fields))
    return view
