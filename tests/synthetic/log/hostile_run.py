"""A run whose names, labels, prompts, answers, figures, reasons and errors are texts of strangers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from synthetic.daemon.hostile_texts import HOSTILE
from synthetic.log.recorder import Recorder
from synthetic.log.text_run import SyntheticRollout, TextRun, text_spec, tokenizer_json

from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.batch import ExperienceRetired
from rftd.streams.events.experience import EvalScored, ExperienceProduced, RolloutFailed
from rftd.streams.events.experiment import ExperimentCompleted, ExperimentFailed
from rftd.streams.events.step import EvalCompleted
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.worker import WorkerLost
from rftd.streams.figures.eval_answers import EvalAnswer, packed
from rftd.streams.log.arrays import Array

WORDS: Final = "\n".join(text for title, text in HOSTILE.items() if title not in ("half", "nul"))
"""All hostile texts that a record can hold, and a command does not refuse."""
SPOKEN: Final = "\n".join(text for text in WORDS.split("\n") if all(ord(character) < 256 for character in text))
"""The texts of characters that the tokenizer of 256 characters has."""


def hostile_run(folder: Path) -> TextRun:
    """A failed run with two trained steps, two evaluations, drops, failures and a lost worker."""
    spec = text_spec(folder, "hostile")
    rft = msgspec.structs.replace(spec.stages[1], name=WORDS)
    stages = (spec.stages[0], rft)
    labels = {WORDS: WORDS}
    spec = msgspec.structs.replace(
        spec, name=WORDS, project=WORDS, labels=labels, stages=stages, warnings=(WORDS,), config={"name": WORDS}
    )
    store = ArtifactStore(Path(spec.job_dir) / "artifacts")
    copies = ("", store.put(tokenizer_json().encode()))
    run = TextRun(Recorder(), name="hostile", job_dir=spec.job_dir, spec=spec, tokenizers=copies, artifacts=store)
    run.figures = {WORDS: 0.5, "actor/entropy": 1.0}
    write = run.recorder.write

    def written(event: Any, *args: Any, **settings: Any) -> Any:
        return write(_hostile(event, store), *args, **settings)

    run.recorder.write = written  # type: ignore[method-assign]
    run.begin()
    run.warm_up()
    spoken = SyntheticRollout(prompt=SPOKEN, parts=((SPOKEN, True), (SPOKEN, False)), extracted=SPOKEN, reward=0.0)
    for _ in range(2):
        run.group([spoken, SyntheticRollout(), spoken], failed=1)
        run.plan(stage=1, take=3)
        run.complete(stage=1, items=3)
        run.publish(0)
        run.evaluate()
    run.group([spoken], failed=3)
    stale = run.waiting.pop().member.experience
    retired = ExperienceRetired(experiences=(stale,), reason=WORDS, uses=0, decided_at_ns=run.recorder.clock.now_ns())
    run.recorder.write(retired, run.id, role="planner")
    lost = WorkerLost(worker=run.workers[0], role="explorer", slot=0, reason=WORDS)
    run.recorder.write(lost, run.id, key=run.workers[0])
    run.finish()
    return run


def _hostile(event: Any, store: ArtifactStore) -> Any:
    """An event with hostile texts in place of the usual ones."""
    replace = msgspec.structs.replace
    match event:
        case TaskLeased():
            return replace(event, row=0)
        case ExperienceProduced():
            return replace(event, metrics={WORDS: 0.5, "accuracy": event.reward}, extracted=WORDS, finish="length")
        case RolloutFailed():
            return replace(event, reason=WORDS, code=WORDS)
        case EvalScored():
            answers = Array.of(list(packed(_answers(event.version))), "u1").stored(store.put)
            return replace(event, answers=answers)
        case EvalCompleted():
            return replace(event, taskset=WORDS, metrics={**event.metrics, WORDS: 0.5})
        case ExperimentCompleted():
            return ExperimentFailed(code="RFTD-EXP-001", reason=WORDS, role="trainer")
    return event


def _answers(version: int) -> Sequence[EvalAnswer]:
    """Answers to four rows, the last one with an error."""
    words = f"{WORDS} of {version}"
    row = {"prompt": words, "text": words, "chars": len(words) + 1, "truth": words, "extracted": words}
    answers = [EvalAnswer(row=number, reward=float(number > version % 3), category=WORDS, **row) for number in range(3)]
    return [*answers, EvalAnswer(row=3, reward=0.0, error=words)]
