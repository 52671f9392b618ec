"""Looks that need an open tokenizer: whether unusual files make one, and whether rows have tokens without an embedding.

The module is also a program: the tokenizer takes seconds to open and imports torch, too large for the daemon's memory.
The program opens the folder given as its argument, or else reads a stage's specification as JSON, and writes an error
as JSON, or nothing.
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
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.datasets.hf_tokenizer import MODEL_FIELD, open_tokenizer
from rftd.workers.datasets.stage_tokenizer import dataset_tokenizer, stage_tokenizer
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.models.model_folder import has_plain_tokenizer, has_tokenizer, has_unembedded_tokens
from rftd.workers.workflows.first_prompts import FirstPrompts
from rftd.workers.workflows.registry import WORKFLOWS

_SAMPLE_ROWS: Final = 500
"""Maximum number of rows encoded per dataset, spread evenly over all rows."""


class _TokenFault(msgspec.Struct, frozen=True):
    """A DataError as a message between processes, through a pipe."""

    what: str
    """Text of the error: what is wrong, in words."""
    where: str | None
    """File and row; None if unknown."""
    fix: str | None
    """Remedy of the error; None if there is none."""


def check_opens(folder: Path, *, trusted: bool, field: str) -> None:
    """Checks that transformers can open the tokenizer of a folder. Raises DataError, about `field`. Blocks.

    Skipped: a well-formed tokenizer.json, as in nearly all folders; a tokenizer that runs code of its folder, unless
    `trusted`; any without transformers installed. Workers check those. A folder without tokenizer is reported by other
    checks.
    """
    if trusted or has_plain_tokenizer(folder) or not has_tokenizer(folder) or missing_of(TORCH):
        return
    _check_in_process(f"the tokenizer of {str(folder)!r} has been opened", field, str(folder))


def check_tokens(stage: StageSpec) -> None:
    """Checks that no inspected row has a token without an embedding. Raises DataError. Blocks.

    A tokenizer fitting its model, as nearly all do, is not opened; nor is one running code of its folder.
    """
    folder = Path(stage.model.path)
    if stage.trainer.engine == "fake" or stage.rollout.engine == SERVICE or not stage.model.path:
        return
    if stage.model.trust_remote_code or (has_plain_tokenizer(folder) and not has_unembedded_tokens(folder)):
        return
    text = msgspec.json.encode(stage).decode()
    _check_in_process(f"the tokenizer of {stage.model.path!r} has been looked at", MODEL_FIELD, text=text)


def _check_in_process(purpose: str, field: str, *arguments: str, text: str | None = None) -> None:
    """Runs this module as a program with these arguments and `text` as input (None: no input). Raises the DataError
    written by the program, about `field`.
    """
    command = [sys.executable, "-P", "-m", "rftd.daemon.run.supervisor.token_looks", *arguments]
    done = run_to_end(command, purpose, text=text)
    if done.stdout:
        fault = json_decoder(_TokenFault).decode(done.stdout)
        raise DataError(fault.what, where=fault.where, field=field, fix=fault.fix)


def opening_fault(folder: str) -> DataError | None:
    """Returns the DataError of a folder whose tokenizer cannot be opened; None if it opens."""
    try:
        open_tokenizer(folder)
    except DataError as error:
        return error
    return None


def find_fault(stage: StageSpec) -> DataError | None:
    """Returns the DataError of a sampled row with a token beyond the model's embeddings; None without one.

    Other faults of a row are reported by other checks.
    """
    try:
        for encode in _encodings(stage):
            try:
                encode()
            except DataError as error:
                if error.field == MODEL_FIELD:
                    return error
    except DataError as error:  # of the tokenizer itself, or of a dataset
        return error if error.field == MODEL_FIELD else None
    except ConfigError:  # a missing workflow: its worker may have it, and reports its absence
        pass
    return None


def _encodings(stage: StageSpec) -> Iterator[Callable[[], object]]:
    """Yields calls encoding one row each, like the stage's workers."""
    served = stage.taskset if stage.serving is not None else None
    tasksets = [spec for spec in (*tasksets_of(stage), *stage.evals) if spec is not served and not spec.queue]
    if tasksets:
        tokenizer = stage_tokenizer(stage)
        for spec in tasksets:
            prompts = FirstPrompts(spec, stage.model, tokenizer)
            with Taskset.open(spec) as taskset:
                for row in _sampled_rows(len(taskset)):
                    task = taskset.task(row)
                    if WORKFLOWS.builtin(task.workflow):
                        yield partial(prompts.of, task)
    if stage.dataset is not None:
        tokenizer = dataset_tokenizer(stage)
        longest = stage.model.max_model_len
        with Taskset.open(stage.dataset) as taskset:
            for row in _sampled_rows(len(taskset)):
                yield partial(taskset.train_rows, row, tokenizer=tokenizer, max_model_len=longest)


def _sampled_rows(rows: int) -> range:
    """Returns the inspected rows, evenly spread from the first to the last."""
    return range(0, rows, max(1, -(-rows // _SAMPLE_ROWS)))


def _main() -> None:
    """Opens a folder's tokenizer, or reads a stage, and writes the fault found."""
    if len(sys.argv) > 1:
        error = opening_fault(sys.argv[1])
    else:
        error = find_fault(json_decoder(StageSpec).decode(sys.stdin.buffer.read()))
    if error is not None:
        fault = _TokenFault(what=error.what, where=error.where, fix=error.fix)
        sys.stdout.buffer.write(msgspec.json.encode(fault))


if __name__ == "__main__":
    _main()
