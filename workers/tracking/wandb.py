"""`WeightsAndBiases`: runs of Weights & Biases, online or offline; each row has a number, so none is duplicated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rftd.ops.clock import Clock, SystemClock
from rftd.ops.errors import ConfigError, UnreachableError, WorkError
from rftd.workers.tracking.point import COLUMNS, EXPLORER, TRAINER, Point
from rftd.workers.tracking.remarks import Remarks
from rftd.workers.tracking.tracker import SURE_S, Kept, Opening

_STEPS: Final = {EXPLORER: "explorer_step", TRAINER: "trainer_step"}
"""The x-axis figure for the curves of each role."""

_REFUSALS: Final = ("error 401", "error 403")
"""Parts of the library's errors for an unknown key, or one without write access."""


class WeightsAndBiases:
    """Maintains the runs of one experiment, each under a separate id, so that a later process continues the runs."""

    sure_at_once = False
    """False: `settle` cannot always confirm storage, because only finished runs are certain to be stored."""

    def __init__(self, opening: Opening, clock: Clock | None = None) -> None:
        """Reads the arguments without starting a run."""
        self._run = opening.run
        """The tracked experiment."""
        self._folder = opening.folder
        """Folder for the library's files."""
        self._args = opening.args
        """Arguments of the tracker."""
        self._clock = clock or SystemClock()
        """Clock that measures the time since `settle` last finished the runs, compared with `SURE_S`."""
        self._runs: dict[str, Any] = {}
        """Run of each role."""
        self._remarks = Remarks()
        """Remarks of the runs, each shown as one text."""
        self._sure_s = 0.0

    def open(self, kept: Kept) -> None:
        """Continues from the state last returned by `settle`; runs begin at their first point."""
        self._finish(0)
        self._remarks = Remarks(kept)
        self._sure_s = self._clock.monotonic_s()

    def write(self, points: Sequence[Point]) -> None:
        """Logs points to the runs; rows already at the service are skipped."""
        for point in points:
            role = self._run.run_of(point)
            run = self._opened_run(role)
            if point.remark:
                run.notes = "\n".join(self._remarks.add(role, point))
                continue
            if point.table and not point.samples:
                continue
            # A row already at the service, from before a kill, is skipped: the library would drop it too, with a
            # warning.
            if point.row >= run.step:
                run.log({**point.figures, **_table(point), _STEPS[point.role]: point.step}, step=point.row)

    def settle(self, *, surely: bool) -> Kept | None:
        """Finishes the runs if `surely`, or every `SURE_S` seconds, and returns the state for `open`; else None."""
        if not surely and self._clock.monotonic_s() - self._sure_s < SURE_S:
            return None
        self._finish(None)
        self._sure_s = self._clock.monotonic_s()
        return self._remarks.kept()

    def close(self, ended: str) -> None:
        """Finishes the runs; with exit code 1 after a failure."""
        self._finish(0 if ended in ("", "completed", "cancelled") else 1)

    def _opened_run(self, role: str) -> Any:
        """Returns the run of a role, begun on first use."""
        if role not in self._runs:
            self._runs[role] = self._begin(role)
        return self._runs[role]

    def _begin(self, role: str) -> Any:
        """Begins a run at the service, or offline."""
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        settings |= {name: self._args[name] for name in ("base_url", "api_key") if self._args.get(name)}
        try:
            run = wandb.init(
                project=self._run.project,
                group=self._run.group,
                name=self._run.title(role),
                id="-".join(text for text in (self._run.experiment, role) if text),
                job_type=role or None,
                tags=[role] if role else None,
                config={**self._run.config, "rftd_experiment": self._run.experiment, "rftd_digest": self._run.digest},
                dir=str(self._folder),
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(**settings),
            )
        except wandb.errors.AuthenticationError:
            # The text may quote a part of the key.
            raise _wrong_key() from None
        except wandb.errors.UsageError:
            message = "wandb has no key, or does not accept it"
            raise ConfigError(message, field="WANDB_API_KEY", fix="export it, or WANDB_MODE=offline") from None
        except wandb.errors.CommError as error:
            # The library's own process continues with the failed run, and would refuse the run as in use.
            wandb.teardown()
            if any(status in str(error) for status in _REFUSALS):
                raise _wrong_key() from None
            raise UnreachableError(f"wandb does not answer: {type(error).__name__}") from None
        for name, pattern in ((_STEPS[EXPLORER], "eval/*"), (_STEPS[EXPLORER], "rollout/*"), (_STEPS[TRAINER], "*")):
            run.define_metric(name)
            if role != EXPLORER or name == _STEPS[EXPLORER]:
                run.define_metric(pattern, step_metric=name)
        return run

    def _finish(self, code: int | None) -> None:
        """Waits until the library has stored everything, and closes the runs."""
        runs = self._runs
        self._runs = {}
        for run in runs.values():
            try:
                run.finish(exit_code=code)
            except Exception as error:
                raise WorkError(f"wandb did not finish a run: {type(error).__name__}") from error


def _wrong_key() -> ConfigError:
    """Returns the error for a refused key."""
    return ConfigError("wandb refuses the key", field="WANDB_API_KEY", fix="export the right one")


def _table(point: Point) -> dict[str, Any]:
    """Returns the table of a point, if any."""
    if not point.samples:
        return {}
    import wandb

    # Mixed types: the column of rows is empty in a table of rollouts.
    rows = [sample.cells() for sample in point.samples]
    return {point.table: wandb.Table(columns=list(COLUMNS), data=rows, allow_mixed_types=True)}
