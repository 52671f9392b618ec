"""`rftd convert`: checkpoints as folders for transformers, without a daemon or torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.data import emit, emit_line
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.ops.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rftd.streams.log.backend import LogUrl
    from rftd.workers.conversion.conversion import Conversion, Form, FoundCheckpoint

_EVERY_BYTES = 1 << 30
"""Bytes between two lines about the progress."""


@click.command("convert")
@click.option(
    "-c",
    "--checkpoint-dir",
    required=True,
    metavar="FOLDER",
    type=click.Path(),
    help="Folder of a run or a checkpoint, or any folder inside or above.",
)
@click.option(
    "-b",
    "--base-model-dir",
    metavar="FOLDER",
    type=click.Path(),
    help="Model that the training began with, for checkpoints without a config.json.",
)
@click.option(
    "-s", "--step", "steps", multiple=True, metavar="N", type=click.IntRange(0), help="Only step N; repeatable."
)
@click.option(
    "--best", is_flag=True, help="Only the best by its evaluation (trainer.best_checkpoint), as the log says."
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Type of the weights. Default: the model's, else the saved type.",
)
@log_option
@shared_options
@click.pass_context
def command(
    ctx: click.Context,
    checkpoint_dir: str,
    base_model_dir: str | None,
    steps: tuple[int, ...],
    best: bool,
    dtype: str | None,
    log_at: LogUrl | None,
) -> None:
    """Convert checkpoints to Hugging Face's format, in actor/huggingface of each; the original files stay unchanged.

    Where that folder is there and has another type than --dtype names, the model goes into actor/huggingface-DTYPE.

    Takes checkpoints of rftd, FSDP (verl, Trinity-RFT) and Megatron. Exit 1 if one cannot be converted.
    """
    from pathlib import Path

    from rftd.ops.paths import absolute_path
    from rftd.workers.conversion.conversion import convert, found_checkpoints

    settings: Settings = ctx.obj
    if best and steps:
        raise UsageError("--best and --step name two checkpoints", field="--best", fix="give one of the two")
    base = Path(absolute_path(base_model_dir)) if base_model_dir else None
    report = _Outcomes(settings)
    checkpoints = found_checkpoints(Path(absolute_path(checkpoint_dir)), steps)
    for checkpoint in _best_of(checkpoints, settings, log_at) if best else checkpoints:
        report.add(convert(checkpoint, base, report.progress, dtype=dtype))
    report.end()
    ctx.exit(1 if report.failed else 0)


def _best_of(
    checkpoints: Sequence[FoundCheckpoint], settings: Settings, log_at: LogUrl | None
) -> list[FoundCheckpoint]:
    """Returns the best checkpoints of their stages, according to the experiment's log. Raises NotFoundError."""
    from rftd.daemon.run.registry import every_entry
    from rftd.daemon.serve.log_source import read_here
    from rftd.storage.files.checkpoint_witness import read_witness

    experiments = {experiment.id: experiment for experiment in read_here(settings, log_at, every_entry)}
    best = []
    for checkpoint in checkpoints:
        witness = read_witness(checkpoint.folder)
        experiment = None if witness is None else experiments.get(witness.experiment)
        chosen = () if experiment is None else experiment.spine.scores.chosen.values()
        if witness is not None and any(choice.version == witness.step for choice in chosen):
            best.append(checkpoint)
    if not best:
        raise NotFoundError(
            f"none of the {len(checkpoints)} checkpoints is the best of its stage, by this log",
            where=str(checkpoints[0].folder.parent),
            field="--best",
            fix="set trainer.best_checkpoint in the experiment; the log of another daemon: give its --data",
        )
    return best


class _Outcomes:
    """Prints the outcome for each checkpoint, immediately or at the end."""

    def __init__(self, settings: Settings) -> None:
        """Prints in the output format of `settings`."""
        self.failed = 0
        """Number of checkpoints that could not be converted."""
        self._settings = settings
        self._items: list[dict[str, Any]] = []
        """Outcomes for programs, printed at the end."""
        self._reported_bytes = 0
        """Bytes written at the last line about the progress."""

    def progress(self, checkpoint: FoundCheckpoint, form: Form, done: int, total: int) -> None:
        """Prints a line at the beginning, and one for each gigabyte."""
        if self._settings.machine_readable or self._settings.verbosity < 0:
            return
        if done == 0:
            self._reported_bytes = 0
            say(f"{checkpoint.folder}  {form}, {_size_text(total)}")
        elif done // _EVERY_BYTES > self._reported_bytes // _EVERY_BYTES and done < total:
            self._reported_bytes = done
            say(f"  {_size_text(done)} of {_size_text(total)}")

    def add(self, done: Conversion) -> None:
        """Adds the outcome for one checkpoint."""
        from rftd.daemon.cli.output.failure import as_text

        self.failed += done.error is not None
        outcome = _json_row(done)
        if self._settings.output == "jsonl":
            emit_line(outcome)
        elif self._settings.machine_readable:
            self._items.append(outcome)
        elif done.error is not None:
            say(f"{done.checkpoint.folder}  FAILED\n{as_text(done.error)}", err=True)
        elif self._settings.verbosity >= 0:
            state = f"converted, {done.tensors} tensors" if done.form else "converted already"
            target = f"{state}: {_relative_to(done.target, done.checkpoint.folder)}"
            say(f"  {target}" if done.form else f"{done.checkpoint.folder}  {target}")

    def end(self) -> None:
        """Prints the whole answer, for programs."""
        if self._settings.machine_readable and self._settings.output != "jsonl":
            emit({"failed": self.failed, "items": self._items}, self._settings)


def _relative_to(path: Path, folder: Path) -> str:
    """Returns the path, shortened if it is inside the folder."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _json_row(done: Conversion) -> dict[str, Any]:
    """Returns the outcome for one checkpoint as JSON."""
    state = "failed" if done.error else "converted" if done.form else "present"
    error = {"code": done.error.code, "what": done.error.what, "where": done.error.where} if done.error else None
    return {
        "checkpoint": str(done.checkpoint.folder),
        "step": done.checkpoint.step,
        "state": state,
        "form": done.form,
        "folder": str(done.target),
        "tensors": done.tensors,
        "size_bytes": done.size_bytes,
        "error": error,
    }


def _size_text(size_bytes: int) -> str:
    """Returns a size in GB or MB."""
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 10**8 else f"{size_bytes / 1e6:.1f} MB"
