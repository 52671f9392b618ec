"""`Trial`: the first rows of a checked file, or one rollout, by this module as a program in a process of its own.

The program reads a `Trial` as JSON and writes a `TrialAnswer`. Rows, tokenizers, workflows and rewards belong to
strangers: whoever starts the program bounds its time, and ends what it leaves behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import RftdError
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.datasets.stage_tokenizer import dataset_tokenizer, stage_tokenizer
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.rollout.tried import chosen_taskset, tried
from rftd.workers.rollout.tried_rollout import FirstRows, TriedRollout
from rftd.workers.workflows.first_prompts import FirstPrompts

PROGRAM: Final = "rftd.workers.rollout.trial"
"""Name of this module, for `python -m`."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A question about an experiment: some rows with the first prompt, or a rollout of one row."""

    spec: ExperimentSpec
    taskset: str | None = None
    """Name of the taskset; None: the first one."""
    row: int = 0
    """First row shown, or row of the rollout."""
    rows: int = 0
    """Number of rows shown; 0: the row is tried."""
    seed: int = 0
    folder: str
    """Folder for temporary files."""


class TrialFault(msgspec.Struct, frozen=True):
    """An error as a message between processes, through a pipe."""

    what: str
    where: str | None
    field: str | None
    fix: str | None


class TrialAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a trial: rows, a rollout, or a fault."""

    rows: FirstRows | None = None
    rollout: TriedRollout | None = None
    fault: TrialFault | None = None


def first_rows(trial: Trial) -> FirstRows:
    """Reads the rows of a trial, and makes the first prompt. Raises ConfigError, DataError."""
    has_tasks = any(tasksets_of(stage) for stage in trial.spec.stages)
    for stage in trial.spec.stages:
        if stage.dataset is not None and (trial.taskset == stage.dataset.name or not (trial.taskset or has_tasks)):
            return _train_rows(trial, stage, stage.dataset)
    stage, spec = chosen_taskset(trial.spec.stages, trial.taskset)
    with Taskset.open(spec) as rows:
        shown = _shown_rows(trial, rows)
        task = rows.task(trial.row)
        tokenizer = stage_tokenizer(stage)
        prompt = FirstPrompts(spec, stage.model, tokenizer).of(task)
    # The answer takes at least one token of the model's length.
    most = min(stage.model.max_prompt_tokens, stage.model.max_model_len - 1)
    text = tokenizer.decode(prompt, special=True)
    return _rows(trial, spec, len(rows), shown, text=text, tokens=len(prompt), most=most, answer=task.truth)


def _train_rows(trial: Trial, stage: StageSpec, spec: TasksetSpec) -> FirstRows:
    """Reads rows to learn from: the prompt is the part of the first sequence before the answer."""
    tokenizer = dataset_tokenizer(stage)
    longest = stage.model.max_model_len
    with Taskset.open(spec) as rows:
        shown = _shown_rows(trial, rows)
        row = rows.train_rows(trial.row, tokenizer=tokenizer, max_model_len=longest)[0]
    tokens = row.tokens.tolist()
    text = tokenizer.decode(tokens[: row.prompt_tokens], special=True)
    answer = tokenizer.decode(tokens[row.prompt_tokens :], special=True)
    return _rows(trial, spec, len(rows), shown, text=text, tokens=row.prompt_tokens, most=longest - 1, answer=answer)


def _rows(
    trial: Trial, spec: TasksetSpec, count: int, shown: list[str], *, text: str, tokens: int, most: int, answer: str
) -> FirstRows:
    """Returns rows with prompt and answer, long texts cut."""
    return FirstRows(
        taskset=spec.name,
        path=spec.path,
        rows=count,
        row=trial.row,
        items=shown,
        prompt=_cut(text, limits.TRIAL_CHARS),
        prompt_tokens=tokens,
        most_tokens=most,
        answer=_cut(answer, limits.TRIAL_CHARS),
    )


def _shown_rows(trial: Trial, rows: Taskset) -> list[str]:
    """Returns the wanted rows as JSON."""
    last = min(len(rows), trial.row + trial.rows)
    return [
        _cut(json.dumps(rows.row(index), ensure_ascii=False, default=str), limits.TRIAL_ROW_CHARS)
        for index in range(trial.row, last)
    ]


def _cut(text: str, most: int) -> str:
    """Returns a text, cut after `most` characters."""
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most:,} more characters"


def _cut_rollout(rollout: TriedRollout) -> TriedRollout:
    """Returns a rollout with long texts cut, and with at most `TRIAL_CALLS` calls, auxiliary answers and parts."""
    calls = [
        msgspec.structs.replace(
            call,
            prompt=_cut(call.prompt, limits.TRIAL_CHARS),
            answer=_cut(call.answer, limits.TRIAL_CHARS),
            prompt_ids=call.prompt_ids[: limits.TRIAL_IDS],
            answer_ids=call.answer_ids[: limits.TRIAL_IDS],
            logprobs=call.logprobs[: limits.TRIAL_IDS],
        )
        for call in rollout.calls[: limits.TRIAL_CALLS]
    ]
    answers = [
        msgspec.structs.replace(answer, text=_cut(answer.text, limits.TRIAL_ROW_CHARS))
        for answer in rollout.auxiliary[: limits.TRIAL_CALLS]
    ]
    return msgspec.structs.replace(
        rollout,
        calls=calls,
        auxiliary=answers,
        parts=rollout.parts[: limits.TRIAL_CALLS],
        prompt=_cut(rollout.prompt, limits.TRIAL_CHARS),
        truth=_cut(rollout.truth, limits.TRIAL_CHARS),
    )


async def _rollout(trial: Trial) -> TriedRollout:
    """Runs the rollout of a trial, and returns the outcome with long texts cut."""
    stage, taskset = chosen_taskset(trial.spec.stages, trial.taskset)
    seed = UUID(int=trial.spec.seed + trial.seed)
    work = tried(trial.spec, stage, taskset, trial.row, clock=SystemClock(), folder=Path(trial.folder), seed=seed)
    return _cut_rollout(await work)


def answer_to(trial: Trial) -> TrialAnswer:
    """Returns the outcome of a trial, a fault included."""
    try:
        if trial.rows:
            return TrialAnswer(rows=first_rows(trial))
        return TrialAnswer(rollout=asyncio.run(_rollout(trial)))
    except RftdError as error:
        return TrialAnswer(fault=TrialFault(error.what, error.where, error.field, error.fix))


def computes_on_device(spec: ExperimentSpec) -> bool:
    """True if a rollout of the experiment may compute on an accelerator of this machine."""
    return any(stage.rollout.engine not in ("fake", SERVICE) for stage in spec.stages)


def _bound(trial: Trial) -> None:
    """Limits the memory of a process reading rows; no process of a trial leaves a core."""
    bounds: dict[int, int] = {resource.RLIMIT_CORE: 0}
    if trial.rows:
        bounds[resource.RLIMIT_DATA] = limits.TRIAL_MEMORY_SIZE_BYTES
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)
        ceiling = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (ceiling, ceiling))


def main() -> None:
    """Reads a trial, and writes the answer."""
    answers = os.dup(1)
    # Whatever a library or a stranger's reward prints must not stand in the answer.
    os.dup2(2, 1)
    trial: Any = json_decoder(Trial).decode(sys.stdin.buffer.read())
    _bound(trial)
    with os.fdopen(answers, "wb") as output:
        output.write(msgspec.json.encode(answer_to(trial)))
    # A thread of a stranger's reward must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
