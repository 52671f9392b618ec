"""Looks that need an open tokenizer: whether odd files make one, and whether rows have tokens without an embedding.

The module is a program of its own as well: the tokenizer takes seconds to open and brings torch along, which a daemon
has no memory for. It opens the folder that is its argument, or else reads a stage's specification as JSON, and writes
an error as JSON, or nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rftd.daemon.cli.living_wait import run_to_end
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import ConfigError, DataError
from rftd.ops.extras import TORCH, missing_of
from rftd.streams.spec.auxiliary import SERVICE
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.datasets.hf_tokenizer import MODEL_FIELD, open_tokenizer
from rftd.workers.datasets.stage_tokenizer import dataset_tokenizer, stage_tokenizer
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.models.model_folder import has_plain_tokenizer, has_tokenizer, has_unembedded_tokens
from rftd.workers.workflows.first_prompts import FirstPrompts
from rftd.workers.workflows.registry import WORKFLOWS

_LOOKS: Final = 500
"""Rows of each dataset that are encoded, spread over all of it."""


class _TokenFault(msgspec.Struct, frozen=True):
    """A DataError as a message that a process sends through a pipe."""

    what: str
    where: str | None
    fix: str | None


def check_opens(folder: Path, *, trusted: bool, field: str) -> None:
    """Returns if transformers makes a tokenizer of the folder's files. Raises DataError. Blocks.

    A sound tokenizer.json, as nearly all folders have it, is not opened; nor is one that runs code of its folder, nor
    any where transformers is not installed: those are left to workers. A folder without any is for others to find.
    """
    if trusted or has_plain_tokenizer(folder) or not has_tokenizer(folder) or missing_of(TORCH):
        return
    _look(f"the tokenizer of {str(folder)!r} has been opened", field, str(folder))


def check_tokens(stage: StageSpec) -> None:
    """Returns if no row that is looked at has a token without an embedding. Raises DataError. Blocks.

    A tokenizer that fits its model, as nearly all do, is not opened; nor is one that runs code of its folder.
    """
    folder = Path(stage.model.path)
    if stage.trainer.engine == "fake" or stage.rollout.engine == SERVICE or not stage.model.path:
        return
    if stage.model.trust_remote_code or (has_plain_tokenizer(folder) and not has_unembedded_tokens(folder)):
        return
    text = msgspec.json.encode(stage).decode()
    _look(f"the tokenizer of {stage.model.path!r} has been looked at", MODEL_FIELD, text=text)


def _look(what: str, field: str, *arguments: str, text: str | None = None) -> None:
    """Runs this module as a program. Raises the DataError that it writes, about the field."""
    command = [sys.executable, "-P", "-m", "rftd.daemon.run.supervisor.token_looks", *arguments]
    done = run_to_end(command, what, text=text)
    if done.stdout:
        fault = json_decoder(_TokenFault).decode(done.stdout)
        raise DataError(fault.what, where=fault.where, field=field, fix=fault.fix)


def opening_fault(folder: str) -> DataError | None:
    """The error of a folder whose files make no tokenizer."""
    try:
        open_tokenizer(folder)
    except DataError as error:
        return error
    return None


def find_fault(stage: StageSpec) -> DataError | None:
    """The error of a token without an embedding; what else is wrong with a row is for others to find."""
    try:
        for encode in _encodings(stage):
            try:
                encode()
            except DataError as error:
                if error.field == MODEL_FIELD:
                    return error
    except DataError as error:  # of the tokenizer itself, or of a dataset
        return error if error.field == MODEL_FIELD else None
    except ConfigError:  # of a workflow that is not here: its worker may have it, and says so if not
        pass
    return None


def _encodings(stage: StageSpec) -> Iterator[Callable[[], object]]:
    """Calls that encode one row each, as the stage's workers will."""
    served = stage.taskset if stage.serving is not None else None
    tasksets = [spec for spec in (*tasksets_of(stage), *stage.evals) if spec is not served and not spec.queue]
    if tasksets:
        tokenizer = stage_tokenizer(stage)
        for spec in tasksets:
            prompts = FirstPrompts(spec, stage.model, tokenizer)
            with Taskset.open(spec) as taskset:
                for row in _spread(len(taskset)):
                    task = taskset.task(row)
                    if WORKFLOWS.builtin(task.workflow):
                        yield partial(prompts.of, task)
    if stage.dataset is not None:
        tokenizer = dataset_tokenizer(stage)
        longest = stage.model.max_model_len
        with Taskset.open(stage.dataset) as taskset:
            for row in _spread(len(taskset)):
                yield partial(taskset.train_rows, row, tokenizer=tokenizer, max_model_len=longest)


def _spread(rows: int) -> range:
    """Rows from the first to the last, as many as are looked at."""
    return range(0, rows, max(1, -(-rows // _LOOKS)))


def _run() -> None:
    """Opens a folder's tokenizer, or reads a stage, and writes what is wrong with it."""
    if len(sys.argv) > 1:
        error = opening_fault(sys.argv[1])
    else:
        error = find_fault(json_decoder(StageSpec).decode(sys.stdin.buffer.read()))
    if error is not None:
        fault = _TokenFault(what=error.what, where=error.where, fix=error.fix)
        sys.stdout.buffer.write(msgspec.json.encode(fault))


if __name__ == "__main__":
    _run()
