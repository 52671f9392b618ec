"""The process of a SwanLab run: `python -m rftd.workers.tracking.swanlab_run`.

SwanLab's library supports a single run per process, and the guide's layout has two. Input is lines of JSON; the process
answers once when the run has begun, and once when everything is stored.
"""

from __future__ import annotations

import os
import sys
from http import HTTPStatus
from typing import Any, BinaryIO

import msgspec

from rftd.ops.decoding import json_decoder


class RunBeginning(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: the arguments of `swanlab.init`, with the key."""

    arguments: dict[str, Any]
    """Arguments of `swanlab.init`."""


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """Each further line: figures of a step, all remarks of the run until then, or the end."""

    step: int = 0
    """Step of figures and texts."""
    figures: dict[str, float | None] = {}
    """A non-finite figure is null, because JSON has none."""
    texts: dict[str, str] = {}
    """Tables of samples, as texts."""
    remarks: list[str] = []
    """All remarks of the run so far; empty for a line of figures."""
    state: str = ""
    """SwanLab's word for the end of the run."""


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a beginning or to an end, one JSON line."""

    error: str = ""
    """The name of the error; never its text, which may quote a key."""


def main() -> int:
    """Serves a run until the end of input; returns the exit status."""
    # The library's output belongs to the tracker's log, not between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lines = sys.stdin.buffer
    try:
        run = _begun(json_decoder(RunBeginning).decode(lines.readline()).arguments)
    except Exception as error:
        _answer(answers, RunAnswer(error=type(error).__name__))
        return 1
    _answer(answers, RunAnswer())
    state = _show_all(run, lines)
    run.finish(state=state, error="see the experiment" if state == "crashed" else None)
    _answer(answers, RunAnswer())
    return 0


def _begun(arguments: dict[str, Any]) -> Any:
    """Begins a run, and returns it."""
    import swanlab

    _keep_what_is_too_much()
    settings = swanlab.Settings(
        interactive=False,
        terminal={"proxy_type": "none"},
        probe={"monitor": False, "hardware": False, "git": False, "requirements": False},
        **arguments.pop("settings", {}),
    )
    if key := arguments.pop("api_key", None):
        settings.merge_settings({"api_key": key})
    return swanlab.init(settings=settings, **arguments)


def _keep_what_is_too_much() -> None:
    """Makes SwanLab send figures again after an answer of 429, with which it gives them up otherwise (0.10.3)."""
    from swanlab.exceptions import ApiError

    own = ApiError.retryable.fget

    def retryable(error: Any) -> bool:
        return getattr(error.response, "status_code", None) == HTTPStatus.TOO_MANY_REQUESTS or own(error)

    ApiError.retryable = property(retryable)


def _show_all(run: Any, lines: BinaryIO) -> str:
    """Shows all lines; returns the final state of the run: success, if the run continues elsewhere."""
    import swanlab

    for text in lines:
        line = json_decoder(RunLine).decode(text)
        if line.state:
            return line.state
        if line.remarks:
            run.config.update({"rftd_remarks": line.remarks})
        if line.figures:
            figures = {name: float("nan") if figure is None else figure for name, figure in line.figures.items()}
            run.log(figures, step=line.step)
        if line.texts:
            run.log({name: swanlab.Text(text) for name, text in line.texts.items()}, step=line.step)
    return "success"


def _answer(answers: BinaryIO, answer: RunAnswer) -> None:
    """Writes an answer as a line of JSON."""
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
