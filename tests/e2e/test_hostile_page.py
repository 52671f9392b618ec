"""The pages of a run in a real browser, over texts of strangers: each is shown as text, and none is markup."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec
import pytest
from synthetic.browser.window import Window, chromium, window_in
from synthetic.daemon.command_line import Served
from synthetic.daemon.hostile_texts import HOSTILE
from synthetic.daemon.served_daemon import served_daemon
from synthetic.log.recorder import Recorder
from synthetic.log.text_run import SyntheticRollout, TextRun, text_spec, tokenizer_json

from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.batch import ExperienceRetired
from rftd.streams.events.experience import EvalScored, ExperienceProduced, RolloutFailed
from rftd.streams.events.experiment import ExperimentCompleted, ExperimentFailed
from rftd.streams.events.step import EvalCompleted
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.worker import WorkerLost
from rftd.streams.figures.eval_answers import EvalAnswer, packed
from rftd.streams.log.arrays import Array

WORDS: Final = "\n".join(text for title, text in HOSTILE.items() if title not in ("half", "nul"))
"""All hostile texts that a record can hold, and a command does not refuse."""
SPOKEN: Final = "\n".join(text for text in WORDS.split("\n") if all(ord(character) < 256 for character in text))
"""The texts of characters that the tokenizer of 256 characters has."""

LONG_TOKEN: Final = 300
LONG_TOKEN_CHARS: Final = 64
LONG_ANSWER: Final = SyntheticRollout(extra=(LONG_TOKEN,) * 160_000)
"""An answer of 10,240,000 characters without a space."""


def hostile_run(folder: Path) -> TextRun:
    """A failed run with two trained steps, two evaluations, drops, failures and a lost worker."""
    spec = text_spec(folder, "hostile")
    rft = msgspec.structs.replace(spec.stages[1], name=WORDS)
    stages = (spec.stages[0], rft)
    labels = {WORDS: WORDS}
    spec = msgspec.structs.replace(
        spec, name=WORDS, project=WORDS, labels=labels, stages=stages, warnings=(WORDS,), config={"name": WORDS}
    )
    store = ArtifactStore(Path(spec.job_dir) / "artifacts")
    tokenizer = json.loads(tokenizer_json())
    tokenizer["model"]["vocab"]["x" * LONG_TOKEN_CHARS] = LONG_TOKEN
    copies = ("", store.put(json.dumps(tokenizer).encode()))
    run = TextRun(Recorder(), name="hostile", job_dir=spec.job_dir, spec=spec, tokenizers=copies, artifacts=store)
    run.figures = {WORDS: 0.5, "actor/entropy": 1.0}
    write = run.recorder.write

    def written(event: Any, *args: Any, **settings: Any) -> Any:
        return write(_hostile(event, store), *args, **settings)

    run.recorder.write = written  # type: ignore[method-assign]
    run.begin()
    run.warm_up()
    spoken = SyntheticRollout(prompt=SPOKEN, parts=((SPOKEN, True), (SPOKEN, False)), extracted=SPOKEN, reward=0.0)
    for _ in range(2):
        run.group([spoken, SyntheticRollout(), spoken], failed=1)
        run.plan(stage=1, take=3)
        run.complete(stage=1, items=3)
        run.publish(0)
        run.evaluate()
    run.group([LONG_ANSWER], failed=3)
    run.group([spoken], failed=3)
    stale = run.waiting.pop().member.experience
    retired = ExperienceRetired(experiences=(stale,), reason=WORDS, uses=0, decided_at_ns=run.recorder.clock.now_ns())
    run.recorder.write(retired, run.id, role="planner")
    lost = WorkerLost(worker=run.workers[0], role="explorer", slot=0, reason=WORDS)
    run.recorder.write(lost, run.id, key=run.workers[0])
    run.finish()
    return run


def _hostile(event: Any, store: ArtifactStore) -> Any:
    """An event with hostile texts in place of the usual ones."""
    replace = msgspec.structs.replace
    match event:
        case TaskLeased():
            return replace(event, row=0)
        case ExperienceProduced():
            return replace(event, metrics={WORDS: 0.5, "accuracy": event.reward}, extracted=WORDS, finish="length")
        case RolloutFailed():
            return replace(event, reason=WORDS, code=WORDS)
        case EvalScored():
            answers = Array.of(list(packed(_answers(event.version))), "u1").stored(store.put)
            return replace(event, answers=answers)
        case EvalCompleted():
            return replace(event, taskset=WORDS, metrics={**event.metrics, WORDS: 0.5})
        case ExperimentCompleted():
            return ExperimentFailed(code="RFTD-EXP-001", reason=WORDS, role="trainer")
    return event


def _answers(version: int) -> Sequence[EvalAnswer]:
    """Answers to four rows, the last one with an error."""
    words = f"{WORDS} of {version}"
    row = {"prompt": words, "text": words, "chars": len(words) + 1, "truth": words, "extracted": words}
    answers = [EvalAnswer(row=number, reward=float(number > version % 3), category=WORDS, **row) for number in range(3)]
    return [*answers, EvalAnswer(row=3, reward=0.0, error=words)]


pytestmark = pytest.mark.e2e
MARKUP = """[...document.querySelectorAll('*')].filter(element => element.matches(
    'img, iframe, object, embed, base, script:not([src]), style, [href^="javascript:" i], [action^="javascript:" i]')
    || element.getAttributeNames().some(name => name.startsWith('on'))).map(element => element.outerHTML)"""
WIDE = """[...document.querySelectorAll('main *')].filter(element =>
    element.getBoundingClientRect().right > innerWidth).map(element => element.outerHTML.slice(0, 200))"""
SHOWN = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</style><style>")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon with the hostile run, open to all, with a hostile note on a rollout."""
    folder = tmp_path_factory.mktemp("hostile")
    with served_daemon(folder, run=hostile_run(folder)) as served:
        yield served


@pytest.fixture
def window() -> Iterator[Window]:
    with chromium() as browser, window_in(browser) as window:
        yield window


def test_texts_of_strangers_are_text_on_every_page(served: Served, window: Window) -> None:
    page, run = window.page, f"/runs/{served.parts.run.id}"
    client = httpx.Client(base_url=served.url, trust_env=False)
    api = f"/v1/experiments/{served.parts.run.id}"
    spoken, plain, *_ = client.get(f"{api}/experiences?order=oldest").raise_for_status().json()["items"]
    note = {"experience": spoken["id"], "note": WORDS, "labels": {WORDS: WORDS}, "star": True}
    client.post(f"{api}/annotate", json=note).raise_for_status()
    words = quote(WORDS, safe="")
    for address in (
        "/",
        f"/?q={words[:300]}",
        run,
        f"{run}?metric={words[:200]}",
        f"{run}/rollouts",
        f"{run}/rollouts?id={spoken['id']}",
        f"{run}/rollouts?id={plain['id']}&colour=length",
        f"{run}/rollouts?q=script",
        f"{run}/rollouts?q={quote('<script>alert(1)')}",
        f"{run}/drops",
        f"{run}/evaluations?order=worst",
        f"{run}/held-out/0",
        f"{run}/timeline",
        f"{run}/history",
        f"{run}/history?form=all",
        f"{run}/history?form=json",
        f"{run}/lineage",
        f"{run}/lineage?id={spoken['id']}",
        f"{run}/configuration",
        f"{run}/configuration?against={words[:200]}",
        f"{run}?over={words[:200]}",
    ):
        response = page.goto(f"{served.url}{address}")
        assert response.status == 200, page.locator("body").inner_text()
        page.locator("h1").first.wait_for()
        assert page.evaluate(MARKUP) == [], address
        if "colour" not in address and "q=" not in address:
            text = page.evaluate(
                "document.body.textContent + [...document.querySelectorAll('option')].map(o => o.value)"
            )
            assert [shown for shown in SHOWN if shown not in text] == [], address
        wide = page.evaluate(WIDE) if window.overflows() else []
        assert wide == [], address
        assert window.faults() == [], address
    assert window.complaints == []
    assert window.foreign == []


def test_a_token_and_a_typed_note_of_a_stranger_are_text(served: Served, window: Window) -> None:
    page = window.page
    page.goto(f"{served.url}/runs/{served.parts.run.id}/rollouts?order=oldest")
    page.locator("#strips canvas").focus()
    page.keyboard.press("End")
    page.locator("#strips .readout", has_text="token").wait_for()
    page.locator("#note-text").fill(WORDS.replace("\n", " ")[:400])
    page.keyboard.press("Enter")
    page.locator("p.note", has_text="<img src=x onerror=alert(1)>").first.wait_for()
    assert page.evaluate(MARKUP) == []
    assert window.complaints == []


def test_ten_megabytes_without_a_space_stay_within_the_page(served: Served, window: Window) -> None:
    page, run = window.page, served.parts.run.id
    rows = httpx.get(f"{served.url}/v1/experiments/{run}/experiences", trust_env=False).raise_for_status().json()
    longest = max(rows["items"], key=lambda row: row["response_tokens"])
    for chars in ("", "&chars=2000000"):
        page.goto(f"{served.url}/runs/{run}/rollouts?id={longest['id']}{chars}")
        page.locator("#strips canvas").focus()
        page.keyboard.press("End")
        page.locator("#strips .readout", has_text=f"token {longest['prompt_tokens'] + 160_000}").wait_for()
        assert not window.overflows(), chars
        page.get_by_text("of up to 102400").first.wait_for()
    assert window.complaints == []
