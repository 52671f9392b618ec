"""An experience as text: by its model's tokenizer, with the truth of its row, or a note of what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from synthetic.log.synthetic_run import spec_of

from rftd.daemon.cli.verbs.experiences import passage_lines, token_lines
from rftd.daemon.http.client.recorded_rows import EMPTY, OTHERWISE, SEVERAL, RecordedRows
from rftd.daemon.http.client.transcript import IdTurn, Passage, TextTurn, transcript_of
from rftd.daemon.http.views.experiences import ExperienceView, SamplingView, StepView
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


def shown(*, steps: tuple[StepView, ...] = (), row: int = 1) -> ExperienceView:
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
    return ExperienceView(experience=experience, spans=[], tokens=tokens, steps=list(steps), task=task)


def three_prompt_ids() -> ExperienceView:
    """The same of a rollout in steps: three ids are of prompts, so that the fourth is the first answer."""
    page = shown()
    experience = msgspec.structs.replace(page.experience, prompt_tokens=3, response_tokens=4)
    return msgspec.structs.replace(page, experience=experience)


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


def test_prompt_answer_and_truth(spec: ExperimentSpec) -> None:
    told = transcript_of(spec, shown())
    assert told.turns == (TextTurn("2+3=", "2+3=", "5\x1b"),)
    assert told.truth == "5"
    assert told.notes == ()
    assert transcript_of(spec, shown(row=0)).truth == "2"


def test_a_recorded_answer_is_a_row_that_trains_the_same_tokens(spec: ExperimentSpec) -> None:
    recorded = RecordedRows(spec)
    row = recorded.row(shown())
    assert row is not None
    assert (row.prompt, row.response, row.reward, row.version) == ("2+3=", "5\x1b", 1.0, 0)
    taskset = TasksetSpec(name="rows", path="none", format=Format(prompt_type="raw"))
    reader = DatasetRecord(msgspec.to_builtins(row), taskset, 0)
    [trained] = sft_rows(reader, stage_tokenizer(spec.stages[1]), 64)
    assert trained.tokens.tolist() == shown().tokens
    assert trained.prompt_tokens == len(PROMPT)


def test_what_no_row_says_is_left_out_with_the_reason(spec: ExperimentSpec) -> None:
    recorded = RecordedRows(spec)
    steps = (StepView(tokens=4, prompt_tokens=3, reward=0.0), StepView(tokens=3, prompt_tokens=0, reward=1.0))
    broken = [*PROMPT, 0xFF, EOS]  # no text has this byte
    undecodable = msgspec.structs.replace(shown(), tokens=broken)
    empty = msgspec.structs.replace(shown(), tokens=[*PROMPT, EOS])
    workflow = msgspec.structs.replace(shown(), sampling=drawn((0, 1), (2, 3)))
    assert [recorded.row(page) for page in (shown(steps=steps), undecodable, empty, workflow)] == [None] * 4
    assert recorded.left_out == {SEVERAL: 2, OTHERWISE: 1, EMPTY: 1}
    with pytest.raises(NotFoundError, match="no specification"):
        RecordedRows(None)


def test_each_token_of_an_answer_has_its_own_text(spec: ExperimentSpec) -> None:
    assert transcript_of(spec, shown()).pieces == ()
    pieces = transcript_of(spec, shown(), pieces=True).pieces
    assert pieces == ("5", "\x1b", "")
    page = msgspec.structs.replace(shown(), logprobs=[-0.5, -0.25, 0.0])
    lines = [line.split() for line in token_lines(page, pieces)]
    assert lines[1:] == [
        ["PLACE", "TOKEN", "TEXT", "LOGPROB"],
        ["0", "53", "'5'", "-0.5000"],
        ["1", "27", "'\\x1b'", "-0.2500"],
        ["2", str(EOS), "''", "0.0000"],
    ]


def test_each_step_of_a_rollout_is_a_turn(spec: ExperimentSpec) -> None:
    steps = (StepView(tokens=4, prompt_tokens=3, reward=0.0), StepView(tokens=3, prompt_tokens=0, reward=1.0))
    told = transcript_of(spec, shown(steps=steps))
    assert [(turn.prompt, turn.answer) for turn in told.turns] == [("2+3", "="), ("", "5\x1b")]


def drawn(*places: tuple[int, int]) -> list[SamplingView]:
    return [SamplingView(temperature=1.0, top_p=1.0, top_k=-1, start=start, end=end) for start, end in places]


def test_words_of_the_workflow_are_told_from_those_of_the_model(spec: ExperimentSpec) -> None:
    """A tool's answer is within the response, and no token of it was drawn."""
    page = msgspec.structs.replace(shown(), sampling=drawn((0, 1), (2, 3)))
    [turn] = transcript_of(spec, page).turns
    assert turn.answer == "5\x1b"
    assert turn.passages == (Passage("model", "5"), Passage("workflow", "\x1b"), Passage("model", ""))
    whole = msgspec.structs.replace(shown(), sampling=drawn((0, 3)))
    assert transcript_of(spec, whole).turns[0].passages == ()


def test_without_settings_of_tokens_the_mask_tells_whose_words_they_are(spec: ExperimentSpec) -> None:
    page = msgspec.structs.replace(shown(), loss_mask=[0, 1, 1])
    [turn] = transcript_of(spec, page).turns
    assert [(passage.by, passage.text) for passage in turn.passages] == [("workflow", "5"), ("model", "\x1b")]


def test_each_step_has_its_own_passages(spec: ExperimentSpec) -> None:
    """The places of sampling count response tokens of all steps, the second of which begins where the first ends."""
    steps = [StepView(tokens=4, prompt_tokens=3, reward=0.0), StepView(tokens=3, prompt_tokens=0, reward=1.0)]
    told = transcript_of(spec, msgspec.structs.replace(three_prompt_ids(), steps=steps, sampling=drawn((1, 2), (3, 4))))
    first, second = told.turns
    assert first.passages == (Passage("workflow", "="),)
    assert second.passages == (Passage("model", "5"), Passage("workflow", "\x1b"), Passage("model", ""))
    assert [line.split(maxsplit=1)[0] for line in passage_lines(second)] == ["answer", "workflow", "answer"]


def test_a_dataset_that_changed_or_is_gone_is_named(spec: ExperimentSpec, tmp_path: Path) -> None:
    (tmp_path / "sums.jsonl").write_text('{"question": "2+3=", "answer": "6"}\n' * 2)
    changed = transcript_of(spec, shown())
    assert changed.truth is None
    assert "is not what the experiment was accepted with" in changed.notes[0]
    (tmp_path / "sums.jsonl").unlink()
    gone = transcript_of(spec, shown())
    assert gone.turns == changed.turns
    assert "does not exist here" in gone.notes[0]


def test_without_a_tokenizer_there_is_a_truth_and_a_note(spec: ExperimentSpec) -> None:
    sft, rft = spec.stages
    real = msgspec.structs.replace(
        spec, stages=(sft, msgspec.structs.replace(rft, trainer=TrainerSpec(engine="torch")))
    )
    told = transcript_of(real, shown())
    assert told.turns == ()
    assert told.truth == "5"
    assert told.notes == ("no text, only ids: model folder '/model' does not exist",)
    assert told.ids == (IdTurn(tuple(PROMPT), (*ANSWER, EOS)),)
    assert transcript_of(spec, shown()).ids == (), "there is text"


def test_a_tokenizer_file_is_read_and_a_damaged_one_named(spec: ExperimentSpec, tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    inner = Tokenizer(models.WordLevel({chr(code): code for code in range(256)}, "?"))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken("<eos>", special=True)])
    inner.save(str(tmp_path / "tokenizer.json"))
    sft, rft = spec.stages
    model = msgspec.structs.replace(rft.model, path=str(tmp_path))
    rft = msgspec.structs.replace(rft, model=model, trainer=TrainerSpec(engine="torch"))
    real = msgspec.structs.replace(spec, stages=(sft, rft))
    assert transcript_of(real, shown()).turns == (TextTurn("2+3=", "2+3=", "5\x1b"),), "the mark of the end is left out"
    (tmp_path / "tokenizer.json").write_text("{")
    assert "tokenizer.json cannot be read" in transcript_of(real, shown()).notes[0]


@pytest.mark.parametrize("left", [(), ("config.json",), ("generation_config.json", "model.safetensors")])
def test_a_model_folder_whose_tokenizer_is_gone_is_told_in_one_line(
    spec: ExperimentSpec, tmp_path: Path, left: tuple[str, ...]
) -> None:
    """It was a page of transformers' about libraries to install."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in left:
        (folder / name).write_text('{"model_type": "llama"}')
    sft, rft = spec.stages
    model = msgspec.structs.replace(rft.model, path=str(folder))
    rft = msgspec.structs.replace(rft, model=model, trainer=TrainerSpec(engine="torch"))
    told = transcript_of(msgspec.structs.replace(spec, stages=(sft, rft)), shown())
    assert told.turns == ()
    assert told.truth == "5"
    assert told.notes == (f"no text, only ids: model folder {str(folder)!r} holds no tokenizer",)
    (folder / "tokenizer.model").write_text("junk")
    told = transcript_of(msgspec.structs.replace(spec, stages=(sft, rft)), shown())
    assert told.notes[0].startswith("no text, only ids: no tokenizer can be read")
    assert "\n" not in told.notes[0]


def test_without_a_specification_there_is_a_note() -> None:
    told = transcript_of(None, shown())
    assert "keeps no specification" in told.notes[0]
    assert told.ids == (IdTurn(tuple(PROMPT), (*ANSWER, EOS)),)
