"""What evaluations decide is checked when the file is submitted: a figure that none of them will have is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.loading import Submission, check_config
from rftd.streams.spec.stage_parts import BestSpec, EarlyStopSpec, FigureSpec, RuleSpec

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

HELD = "buffer.explorer_input.eval_tasksets=[{name: held/out, path: /e.jsonl, repeat_times: 4}]"
TWO = "buffer.explorer_input.eval_tasksets=[{name: one, path: /e.jsonl}, {name: two, path: /f.jsonl}]"
OFTEN = "explorer.eval_interval=1"


@pytest.mark.parametrize(
    ("metric", "figure"),
    [
        ("score", "score"),
        ("accuracy", "accuracy/mean"),
        ("eval/held/out/accuracy", "accuracy/mean"),
        ("held/out/pass@4", "pass@4"),
        ("reward/format/mean", "reward/format/mean"),
        ("category/algebra/accuracy", "category/algebra/accuracy"),
        ("failed_rows", "failed_rows"),
    ],
)
def test_a_metric_is_named_as_trackers_name_it(load: Load, small: str, metric: str, figure: str) -> None:
    [stage] = load(small, [HELD, OFTEN, f"trainer.best_checkpoint={{metric: '{metric}', keep: 2}}"]).spec.stages
    expected = FigureSpec(taskset="held/out", figure=figure)
    assert stage.trainer.by_evaluation.best == BestSpec(figure=expected, keep=2)


def test_each_section_says_what_it_decides(load: Load, small: str) -> None:
    rules = "trainer.rules=[{falls_by: 0.2}, {metric: two/accuracy, below: 0.1, then: stop}]"
    stop = "trainer.early_stop={metric: one/score, patience: 2, min_delta: 0.01, bound: 0.9}"
    spec = load(small, [TWO, OFTEN, stop, rules.replace("{falls_by", "{metric: one/score, falls_by")]).spec
    decisions = spec.stages[0].trainer.by_evaluation
    one = FigureSpec(taskset="one")
    two = FigureSpec(taskset="two", figure="accuracy/mean")
    assert decisions.early_stop == EarlyStopSpec(figure=one, patience=2, min_delta=0.01, bound=0.9)
    assert decisions.rules == (
        RuleSpec(figure=one, kind="falls_by", threshold=0.2),
        RuleSpec(figure=two, kind="below", threshold=0.1, then="stop"),
    )
    again = check_config(effective_config(spec))
    assert again.stages[0].trainer.by_evaluation == decisions


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ([HELD, "trainer.best_checkpoint={metric: acuracy}"], ("trainer.best_checkpoint.metric", "'accuracy'?")),
        ([HELD, "trainer.best_checkpoint={metric: pass@3}"], ("do not have", "'pass@4'?")),
        ([TWO, "trainer.early_stop={patience: 1}"], ("there are 2 held-out tasksets", "eval/one/score")),
        ([TWO, "trainer.early_stop={patience: 1, metric: eval/tow/score}"], ("2 held-out", "'eval/two/score'?")),
        (["trainer.best_checkpoint={}"], ("there are no held-out tasks", "eval_tasksets")),
        ([HELD, "trainer.early_stop={}"], ("has neither patience nor bound", "patience: 3")),
        ([HELD, "trainer.early_stop={metric: accuracy, bound: 1.5}"], ("never reaches", "between 0 and 1")),
        ([HELD, "trainer.rules=[{metric: accuracy, above: 1}]"], ("rules[0].above: is 1, which accuracy never is",)),
        ([HELD, "trainer.rules=[{metric: accuracy, below: 0}]"], ("rules[0].below", "between 0 and 1")),
        ([HELD, "trainer.rules=[{metric: pass@4, falls_by: 1.2}]"], ("rules[0].falls_by", "between 0 and 1")),
        ([HELD, "trainer.early_stop={bound: .nan}"], ("trainer.early_stop.bound",)),
        ([HELD, "trainer.rules=[{then: pause}]"], ("trainer.rules[0]", "no condition", "falls_by, rises_by")),
        ([HELD, "trainer.rules=[{below: 1, above: 2}]"], ("2 conditions: below, above",)),
        ([HELD, "trainer.rules=[{below: 1, than: stop}]"], ("than", "'then'")),
        ([HELD, "trainer.best_checkpoint={mode: most}"], ("'max' or 'min'",)),
        ([HELD, "trainer.best_checkpoint={keep: 0}"], ("trainer.best_checkpoint.keep",)),
    ],
)
def test_what_cannot_be_decided_is_refused(errors: Errors, small: str, overrides: list[str], parts: tuple[str]) -> None:
    error = "\n".join(errors(small, [*overrides, OFTEN]))
    assert all(part in error for part in parts), error


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (["trainer.best_checkpoint={}"], "trainer.best_checkpoint: the stage is evaluated 2 times only"),
        ([OFTEN, "trainer.early_stop={patience: 9}"], "trainer.early_stop.patience is 9, and the stage is evaluated 7"),
    ],
)
def test_what_too_few_evaluations_decide_is_a_warning(
    load: Load, small: str, overrides: list[str], warning: str
) -> None:
    spec = load(small, [HELD, "buffer.total_steps=6", *overrides]).spec
    assert [text for text in spec.warnings if text.startswith(warning)]


def test_a_stage_without_evaluations_inherits_nothing(load: Load, errors: Errors, small: str) -> None:
    two = (
        "stages=[{stage_name: warm, mode: train, algorithm: {algorithm_type: sft}, buffer: {train_batch_size: 3, "
        "trainer_input: {experience_buffer: {path: /rows.jsonl}}}}, {stage_name: rft}]"
    )
    spec = load(small, [HELD, OFTEN, two, "trainer.best_checkpoint={}"]).spec
    assert [stage.trainer.by_evaluation.best is not None for stage in spec.stages] == [False, True]
    assert "trainer.best_checkpoint has no effect in stage 'warm', which makes no evaluations" in spec.warnings
