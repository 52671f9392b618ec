"""`rftd replay`: the training of an experiment, repeated from the log, with or without a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.data import emit, emit_line
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options

if TYPE_CHECKING:
    from pathlib import Path

    from rftd.daemon.run.registry import Entry
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog
    from rftd.workers.training.replay import Beginning, ReplayOrder, ReplayOutcome
    from rftd.workers.training.rerun import Compared


@click.command("replay")
@click.argument("experiment")
@click.option("--to-step", type=click.IntRange(1), metavar="N", help="Weight version to stop at. Default: the last.")
@click.option("--from-checkpoint", is_flag=True, help="Start at the newest good checkpoint instead of the base model.")
@click.option("--check", is_flag=True, help="Stop at the first difference, with exit status 1.")
@click.option(
    "--allow-drift", is_flag=True, help="Continue although a library or the machine differs from the recorded one."
)
@click.option(
    "--into", metavar="FOLDER", type=click.Path(), help="New folder for the final weights, laid out as a checkpoint."
)
@log_option
@shared_options
@click.pass_context
def command(
    ctx: click.Context,
    experiment: str,
    to_step: int | None,
    from_checkpoint: bool,
    check: bool,
    allow_drift: bool,
    into: str | None,
    log_at: LogUrl | None,
) -> None:
    """Repeat the training of EXPERIMENT (a name, name@2, an id) from the log; compare the weights of every step."""
    from pathlib import Path

    from rftd.daemon.run.registry import find_entry
    from rftd.daemon.serve.log_source import read_here
    from rftd.ops.clock import SystemClock
    from rftd.workers.training.replay import ReplayOrder, replay

    settings: Settings = ctx.obj
    order = ReplayOrder(
        to_step=to_step,
        from_checkpoint=from_checkpoint,
        stop_at_difference=check,
        allow_drift=allow_drift,
        into=Path(into) if into else None,
    )
    report = _Report(settings, order)

    async def run(log: EventLog) -> ReplayOutcome:
        report.entry = await find_entry(log, experiment)
        id = report.entry.id
        return await replay(log, id, order, clock=SystemClock(), on_begin=report.begin, on_step=report.step)

    outcome = read_here(settings, log_at, run)
    report.end(outcome)
    ctx.exit(1 if check and outcome.different else 0)


class _Report:
    """Prints a replay step by step, or at its end."""

    def __init__(self, settings: Settings, order: ReplayOrder) -> None:
        """Prints in the output format of `settings`, about the replay `order`."""
        self.entry: Entry | None = None
        """The replayed experiment; None before it is found."""
        self._settings = settings
        self._order = order
        self._items: list[dict[str, Any]] = []
        """Steps for programs, printed at the end."""
        self._beginning: Beginning | None = None
        """Starting point; None before the replay begins."""

    def begin(self, beginning: Beginning) -> None:
        """Prints the starting point, and possible reasons for different digests."""
        self._beginning = beginning
        for drifted in beginning.drift:
            self._note(f"{drifted} (generation {drifted.generation})")
        if not beginning.deterministic:
            self._note("the trainer engine promises no equal digests here")
        if beginning.reason:
            self._note(f"checkpoints passed over: {beginning.reason}")
        if not self._settings.machine_readable and self._settings.verbosity >= 0:
            count = beginning.last - beginning.version
            say(f"{count} steps from {_start_words(beginning)}")

    def step(self, compared: Compared) -> None:
        """Prints one step's line."""
        if self._settings.output == "jsonl":
            emit_line(_json_row(compared))
        elif self._settings.machine_readable:
            self._items.append(_json_row(compared))
        elif self._settings.verbosity >= 0:
            say(_step_line(compared))

    def end(self, outcome: ReplayOutcome) -> None:
        """Prints the verdict."""
        assert self._beginning is not None and self.entry is not None
        if self._settings.output == "jsonl":
            return
        if not self._settings.machine_readable:
            say(_verdict_lines(outcome, self._order.into))
            return
        answer = {
            "experiment": str(self.entry.id),
            "name": self.entry.name,
            "from_version": self._beginning.version,
            "checkpoint": self._beginning.checkpoint or None,
            "drift": [{"name": d.name, "recorded": d.recorded, "here": d.here} for d in self._beginning.drift],
            "steps": outcome.steps,
            "equal": outcome.steps - len(outcome.different),
            "sha256_compared": outcome.digests,
            "duration_s": round(outcome.duration_s, 3),
            "recorded_duration_s": round(outcome.recorded_duration_s, 3),
        }
        emit({**answer, "items": self._items}, self._settings)

    def _note(self, text: str) -> None:
        """Prints a note on standard error, unless quiet."""
        if self._settings.verbosity >= 0:
            say(f"note: {text}", err=True)


def _start_words(beginning: Beginning) -> str:
    """Returns the starting point in words."""
    return f"step {beginning.version}, {beginning.checkpoint}" if beginning.checkpoint else "the base model"


def _json_row(compared: Compared) -> dict[str, Any]:
    """Returns the comparison of one step as JSON."""
    return {
        "step": compared.step,
        "stage": compared.stage,
        "batch": str(compared.batch),
        "generation": compared.generation,
        "items": compared.items,
        "tokens": compared.tokens,
        "equal": compared.equal,
        "recorded": compared.recorded,
        "found": compared.found,
        "recorded_sha256": compared.recorded_sha256,
        "found_sha256": compared.found_sha256,
    }


def _step_line(compared: Compared) -> str:
    """Returns a step as a line: checksums equal, or the difference."""
    if not compared.equal:
        return _difference_words(compared)
    digests = "checksum and sha256 equal" if compared.recorded_sha256 else "checksum equal"
    return f"step {compared.step}  {compared.items} items, {compared.tokens} tokens  {compared.found}  {digests}"


def _difference_words(compared: Compared) -> str:
    """Returns the differing digests of a step, recorded and found."""
    pairs = [("checksum", compared.recorded, compared.found)]
    if compared.recorded_sha256 is not None:
        pairs.append(("sha256", compared.recorded_sha256, str(compared.found_sha256)))
    wrong = "; ".join(f"{name} recorded {before}, found {now}" for name, before, now in pairs if before != now)
    return f"step {compared.step}  DIFFERS: {wrong} (batch {compared.batch}, generation {compared.generation})"


def _verdict_lines(outcome: ReplayOutcome, into: Path | None) -> str:
    """Returns the verdict in lines; `into` is the folder of the final weights."""
    equal = f"{outcome.steps - len(outcome.different)} of {outcome.steps} steps equal"
    speed = f"{outcome.duration_s:.1f} s for what took {outcome.recorded_duration_s:.1f} s to train"
    lines = [f"{equal}; sha256 compared at {outcome.digests}; {speed}"]
    if outcome.different:
        lines.append(f"first difference: {_difference_words(outcome.different[0])}")
    if into is not None:
        lines.append(f"weights: {into / 'actor' / 'huggingface'}")
    return "\n".join(lines)
