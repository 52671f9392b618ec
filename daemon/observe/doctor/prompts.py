"""Checks of tasks and rows: chat template, columns, the lengths of prompts. Rows are read, none is answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

from rftd.ops.errors import ConfigError, DataError, NotInstalledError
from rftd.ops.health import Diagnosis
from rftd.streams.events.step import EQUAL_PAIRS, ROW_ANSWERS_CUT, ROW_PROMPTS_CUT
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.datasets.stage_tokenizer import dataset_tokenizer, stage_tokenizer
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.datasets.train_row import TrainRow, row_faults
from rftd.workers.workflows.first_prompts import FirstPrompts

_SAMPLE_ROWS: Final = 500
"""Number of rows read per dataset, spread evenly: about a second for a tokenizer of average speed."""
_DATASET: Final = "dataset"
"""Name of the check of datasets."""
_SHOWN: Final = 60
"""Number of characters shown at each end of a text."""


_LONGER: Final = "raise model.max_model_len, or shorten the rows"
"""Fix for training rows that are too long."""
_FAULTS: Final = {
    ROW_PROMPTS_CUT: ("a prompt that leaves no room for an answer: nothing is learned", _LONGER),
    ROW_ANSWERS_CUT: ("an answer that loses its end: the end is not learned", _LONGER),
    EQUAL_PAIRS: ("two answers with the same tokens: nothing is learned", "leave such rows out, or correct them"),
}
"""Figures counting rows from which less is learned than intended, each with its meaning and a fix."""


def check_prompts(stage: StageSpec) -> Iterator[Diagnosis]:
    """Yields the findings about the stage's tasksets and training rows, once its model and tokenizer are readable."""
    if stage.trainer.engine == "fake" or stage.rollout.engine == SERVICE or not stage.model.path:
        return
    served = stage.taskset if stage.serving is not None else None
    for taskset in (*tasksets_of(stage), *stage.evals):
        if taskset is not served and not taskset.queue:
            yield from _taskset_findings(stage, taskset)
    if stage.dataset is not None:
        yield from _dataset_findings(stage, stage.dataset)


def _taskset_findings(stage: StageSpec, spec: TasksetSpec) -> Iterator[Diagnosis]:
    """Yields the findings about a taskset: whether rows are tasks, and prompts fit."""
    model = stage.model
    # One token of the model's length belongs to the response.
    most = min(model.max_prompt_tokens, model.max_model_len - 1)
    lengths: list[int] = []
    answers = 0
    try:
        prompts = FirstPrompts(spec, model, stage_tokenizer(stage))
        with Taskset.open(spec) as taskset:
            rows = _sampled_rows(len(taskset))
            for row in rows:
                task = taskset.task(row)
                lengths.append(len(prompts.of(task)))
                answers += bool(task.truth)
    except DataError as error:
        template = "chat template" in error.what
        position = f"{error.where}: " if error.where else ""
        yield Diagnosis("chat template" if template else _DATASET, "fail", f"{position}{error.what}", error.fix or "")
        return
    except ConfigError:  # a missing part: its worker may have it, and reports its absence
        return
    named = f"taskset {spec.name!r}"
    yield Diagnosis(_DATASET, "ok", f"{named}: {_row_count_words(len(rows), spec.rows or len(rows))} can be read")
    if spec.format.response_key and not answers:
        problem = f"{named}: no row has an answer in {spec.format.response_key!r}"
        yield Diagnosis(_DATASET, "fail", problem, "correct format.response_key, or the rows")
    yield _length_finding(named, lengths, most, cut=model.enable_prompt_truncation)


def _length_finding(named: str, lengths: list[int], most: int, *, cut: bool) -> Diagnosis:
    """Returns the finding about prompt lengths in tokens; `cut`: longer prompts are cut instead of failing."""
    longest = max(lengths)
    over = sum(length > most for length in lengths)
    if not over:
        return Diagnosis("prompts", "ok", f"{named}: up to {longest} tokens, of {most} that fit")
    happens = "is cut and trains nothing" if cut else "fails"
    whose = "every prompt" if over == len(lengths) else f"{over} of {len(lengths)} prompts"
    problem = f"{named}: {whose} has more than {most} tokens (the longest {longest}), and {happens}"
    fix = f"raise model.max_prompt_tokens to {longest}, and model.max_model_len with it, or shorten the rows"
    return Diagnosis("prompts", "fail" if over == len(lengths) else "warn", problem, fix)


def _dataset_findings(stage: StageSpec, spec: TasksetSpec) -> Iterator[Diagnosis]:
    """Yields the findings about training rows: whether they can be read, and what they teach."""
    try:
        tokenizer = dataset_tokenizer(stage)
        with Taskset.open(spec) as taskset:
            rows = _sampled_rows(len(taskset))
            first: tuple[TrainRow, ...] = ()
            faults: Counter[str] = Counter()
            for row in rows:
                sequences = taskset.train_rows(row, tokenizer=tokenizer, max_model_len=stage.model.max_model_len)
                first = first or sequences
                faults.update(row_faults(sequences))
    except NotInstalledError:  # of the tokenizer, which has its own finding
        return
    except DataError as error:
        template = "chat template" in error.what
        position = f"{error.where}: " if error.where else ""
        yield Diagnosis("chat template" if template else _DATASET, "fail", f"{position}{error.what}", error.fix or "")
        return
    yield Diagnosis(
        _DATASET, "ok", f"dataset {spec.name!r}: {_row_count_words(len(rows), spec.rows or len(rows))} can be read"
    )
    for name, (fault, fix) in _FAULTS.items():
        if count := faults[name]:
            problem = f"dataset {spec.name!r}: {count:,} of {len(rows):,} rows read have {fault}"
            teaches_nothing = count == len(rows) and name != ROW_ANSWERS_CUT
            yield Diagnosis(_DATASET, "fail" if teaches_nothing else "warn", problem, fix)
    for sequence in first:
        yield Diagnosis("first row", "ok", _row_words(sequence, tokenizer))


def _row_words(row: TrainRow, tokenizer: Tokenizer) -> str:
    """Returns a training row for people: text, with learned tokens in brackets, and ids, both cut in the middle."""
    tokens = row.tokens.tolist()
    learned = [False] * row.prompt_tokens + [bool(mask) for mask in row.loss_mask]
    text = ""
    for learns, run in groupby(zip(tokens, learned, strict=True), key=itemgetter(1)):
        words = json.dumps(tokenizer.decode([token for token, _ in run], special=True), ensure_ascii=False)[1:-1]
        text += f"[{_shortened(words)}]" if learns else _shortened(words)
    ids = _shortened(" ".join(map(str, tokens)))
    return f"{text} (in brackets: learned, {sum(learned)} of {len(tokens)} tokens; ids {ids})"


def _shortened(text: str) -> str:
    """Returns a short text whole, and of a long text the beginning and the end."""
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]} … {text[-_SHOWN:]}"


def _sampled_rows(rows: int) -> range:
    """Returns the inspected rows, evenly spread from the first to the last."""
    return range(0, rows, max(1, -(-rows // _SAMPLE_ROWS)))


def _row_count_words(looked: int, rows: int) -> str:
    """Returns the number of rows read, of all rows, in words."""
    return f"{rows:,} rows" if looked >= rows else f"{looked:,} of {rows:,} rows, spread over all,"
