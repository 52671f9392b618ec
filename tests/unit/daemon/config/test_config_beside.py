"""Errors of all phases come at once: a malformed field hides nothing, and nothing follows from it alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from synthetic.daemon.config_fields import schema_fields, with_field

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.daemon.config.validation import all_fields
from rftd.ops import limits
from rftd.ops.errors import UsageError

Errors = Callable[..., list[str]]

MALFORMED = (
    "buffer.batch_size=two",
    "nonsense=1",
    "mode=bth",
    "model.max_model_len=[1]",
    "algorithm.repeat_times='8'",
    "trainer.save_intervall=3",
    "stages=7",
    "algorithm.algorithm_type=gropo",
    "buffer.total_steps='six'",
    "synchronizer.sync_style=fixd",
    "explorer=3",
    "policy={kind: hard_bond}",
    "model.lora_configs=[{lora_rank: 4}]",
    "project=${oc.env:NOT_SET}",
)
CONTRADICTIONS = (
    "buffer.explorer_input.taskset.default_workflow_type=math_workflw",
    "algorithm.policy_loss_fn=pppo",
    "buffer.explorer_input.taskset.workflow_args={with_thnk: true}",
    "trainer.engine_args={rnks: 2}",
    "buffer.explorer_input.taskset.data_selector={selector_type: randm}",
)


@pytest.mark.parametrize(("one", "other"), [*itertools.product(MALFORMED, CONTRADICTIONS)])
def test_the_errors_of_two_mistakes_are_those_of_each(errors: Errors, one: str, other: str) -> None:
    assert set(errors(overrides=[one, other])) == {*errors(overrides=[one]), *errors(overrides=[other])}


def test_two_malformed_fields_and_two_contradictions(errors: Errors) -> None:
    given = ["buffer.batch_size=two", "nonsense=1", *CONTRADICTIONS[:2]]
    alone = {text for each in given for text in errors(overrides=[each])}
    assert set(errors(overrides=given)) == alone


def test_many_malformed_fields_hide_nothing_and_too_many_say_so(errors: Errors) -> None:
    malformed = [f"{show(path)}=[wrong]" for path in all_fields() if path[0] in ("trainer", "model") and len(path) == 2]
    few = [each for each in malformed if not each.startswith(("model.model_path", "model.max_"))][:30]
    alone = {text for each in CONTRADICTIONS[:2] for text in errors(overrides=[each])}
    found = errors(overrides=[*few, *CONTRADICTIONS[:2]])
    assert set(found) >= alone
    assert len(found) == len(few) + len(alone)
    many = errors(overrides=[f"nonsense{number}=1" for number in range(limits.CONFIG_ERRORS + 3)])
    assert "and 3 more; others may be found once these are corrected" in many[-1]


@pytest.mark.parametrize("of", ["grpo", "sft"])
def test_a_malformed_field_makes_no_other_error(small: str, tmp_path: Path, of: str) -> None:
    base = yaml.safe_load(small)
    if of == "sft":
        rows = {"experience_buffer": {"path": "/rows.jsonl", "storage_type": "file"}}
        base |= {"mode": "train", "algorithm": {"algorithm_type": "sft"}}
        base["buffer"] = {"train_batch_size": 4, "total_steps": 3, "trainer_input": rows}
    false: list[str] = []
    fields: list[FieldPath] = [
        tuple("sft" if part == "NAME" else part for part in each.path) for each in schema_fields() if not each.kind
    ]
    for path in fields:
        text = yaml.safe_dump(with_field(base, path, {"no": ["value"]}))
        try:
            load_text(text, "exp.yaml", environ={}, cwd=tmp_path)
        except ConfigErrors as found:
            false += [f"{path}: {error}" for error in found.errors if not _is_own(error, path)]
    assert not false, "\n".join(false)


def _is_own(error: UsageError, path: FieldPath) -> bool:
    """True for an error of the field, of the section that it makes the file have, and of what else that must hold."""
    name = ".".join(str(part) for part in path if not isinstance(part, int))
    field = "".join(part for part in (error.field or "").replace("]", "[").split("[")[::2])
    return name.startswith(field) or field.startswith(name) or error.what == "is required"
