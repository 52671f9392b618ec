"""An experience as text: by its model's tokenizer, with the truth of its row, or a note of what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from synthetic.log.synthetic_run import spec_of

from rftd.daemon.cli.verbs.experiences import answer_lines, token_lines
from rftd.daemon.http.client.recorded_rows import EMPTY, OTHERWISE, SEVERAL, UNREADABLE, RecordedRows
from rftd.daemon.http.views.experiences import ExperienceView
from rftd.daemon.http.views.text import RolloutText, TextPart, TextTurn
from rftd.ops.errors import NotFoundError
from rftd.storage.queries.experiences import ExperienceRow, TaskRow
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec, TrainerSpec
from rftd.workers.datasets.byte_tokenizer import EOS
from rftd.workers.datasets.record import DatasetRecord
from rftd.workers.datasets.stage_tokenizer import stage_tokenizer
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.train_rows import sft_rows

PROMPT = b"2+3="
ANSWER = b"5\x1b"


def shown(*, row: int = 1) -> ExperienceView:
    """An experience of the second stage, with its tokens."""
    tokens = [*PROMPT, *ANSWER, EOS]
    experience = ExperienceRow(
        id="1",
        group="2",
        rollout=0,
        stage=1,
        state="waiting",
        retired_reason=None,
        reward=1.0,
        priority=None,
        prompt_tokens=len(PROMPT),
        response_tokens=len(tokens) - len(PROMPT),
        oldest_version=0,
        newest_version=0,
        step=None,
        staleness_versions=None,
        uses=0,
        finish="stop",
        duration_s=None,
        metrics={},
        produced_ns=0,
        partition=0,
        offset=0,
    )
    task = TaskRow(sequence=7, row=row, epoch=0)
    return ExperienceView(experience=experience, spans=[], tokens=tokens, task=task)


def text_of(page: ExperienceView, *turns: TextTurn) -> RolloutText:
    """The text of an experience with these turns."""
    return RolloutText(
        experience=page.experience, turns=list(turns), extracted=None, ids=[], spans=[], auxiliary=[], notes=[]
    )


def turn(prompt: str, answer: str, *parts: tuple[str, str]) -> TextTurn:
    """A turn; without parts the model drew the whole answer."""
    views = [TextPart(by=by, text=text, start=0, end=1) for by, text in parts or (("model", answer),)]  # type: ignore[arg-type]
    return TextTurn(prompt=prompt, bare_prompt=prompt, answer=answer, chars=len(answer), parts=views)


def spoken(page: ExperienceView) -> RolloutText:
    """The text of an experience of bytes, as the API has it."""
    tokens = page.tokens or []
    prompt, answer = tokens[: len(PROMPT)], tokens[len(PROMPT) :]
    texts = [bytes(token for token in ids if token < EOS).decode(errors="replace") for ids in (prompt, answer)]
    return text_of(page, turn(texts[0], texts[1]))


@pytest.fixture
def spec(tmp_path: Path) -> ExperimentSpec:
    """An experiment on fake engines, whose tokenizer is one of bytes, with a taskset of two rows."""
    path = tmp_path / "sums.jsonl"
    rows = ({"question": "1+1=", "answer": "2"}, {"question": "2+3=", "answer": "5"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    taskset = TasksetSpec(name="sums", path=str(path), format=Format(prompt_key="question", response_key="answer"))
    with Taskset.open(taskset) as opened:
        taskset = msgspec.structs.replace(taskset, rows=2, digest=opened.digest)
    sft, rft = spec_of("small", 3).stages
    rft = msgspec.structs.replace(rft, taskset=taskset, trainer=TrainerSpec(engine="fake"))
    return msgspec.structs.replace(spec_of("small", 3), stages=(sft, rft))


def test_a_recorded_answer_is_a_row_that_trains_the_same_tokens(spec: ExperimentSpec) -> None:
    recorded = RecordedRows(spec)
    row = recorded.row(shown(), spoken(shown()))
    assert row is not None
    assert (row.prompt, row.response, row.reward, row.version) == ("2+3=", "5\x1b", 1.0, 0)
    taskset = TasksetSpec(name="rows", path="none", format=Format(prompt_type="raw"))
    reader = DatasetRecord(msgspec.to_builtins(row), taskset, 0)
    [trained] = sft_rows(reader, stage_tokenizer(spec.stages[1]), 64)
    assert trained.tokens.tolist() == shown().tokens
    assert trained.prompt_tokens == len(PROMPT)


def test_what_no_row_says_is_left_out_with_the_reason(spec: ExperimentSpec) -> None:
    recorded = RecordedRows(spec)
    undecodable = msgspec.structs.replace(shown(), tokens=[*PROMPT, 0xFF, EOS])  # no text has this byte
    empty = msgspec.structs.replace(shown(), tokens=[*PROMPT, EOS])
    page = shown()
    several = text_of(page, turn("2+3", "="), turn("", "5"))
    workflow = text_of(page, turn("2+3=", "5!", ("model", "5"), ("workflow", "!")))
    pairs = [(page, several), (undecodable, spoken(undecodable)), (empty, spoken(empty)), (page, workflow)]
    assert [recorded.row(*pair) for pair in pairs] == [None] * 4
    assert recorded.row(page, text_of(page)) is None
    assert recorded.left_out == {SEVERAL: 2, OTHERWISE: 1, EMPTY: 1, UNREADABLE: 1}
    with pytest.raises(NotFoundError, match="no specification"):
        RecordedRows(None)


def test_each_token_of_an_answer_has_its_own_line() -> None:
    page = msgspec.structs.replace(shown(), logprobs=[-0.5, -0.25, 0.0])
    lines = [line.split() for line in token_lines(page, ["5", "\x1b", ""])]
    assert lines[1:] == [
        ["PLACE", "TOKEN", "TEXT", "LOGPROB"],
        ["0", "53", "'5'", "-0.5000"],
        ["1", "27", "'\\x1b'", "-0.2500"],
        ["2", str(EOS), "''", "0.0000"],
    ]


def test_each_writer_of_an_answer_has_a_label() -> None:
    mixed = turn("", "5!", ("model", "5"), ("tool", "!"), ("workflow", "?"))
    assert [line.split(maxsplit=1)[0] for line in answer_lines(mixed)] == ["answer", "tool", "workflow"]
    assert [line.split() for line in answer_lines(turn("", "5!"))] == [["answer", "5!"]]
