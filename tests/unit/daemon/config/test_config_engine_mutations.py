"""Keys of veRL's and arguments of vLLM's misspelt, of a wrong type or size: named at their place, and none accepted."""

from __future__ import annotations

import copy
from typing import Any, Final

from synthetic.daemon.config_fields import with_field
from synthetic.daemon.config_mutations import Mutation, MutationScore, batched, misspelt

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.verl.table import TABLE
from rftd.workers.engines.vllm.tables import ASYNC_ENGINE_ARGS

_BASE: Final[dict[str, Any]] = {
    "checkpoint_root_dir": "/c",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 4},
    "model": {"model_path": "/m", "max_model_len": 64},
    "buffer": {
        "batch_size": 2,
        "total_steps": 6,
        "explorer_input": {"taskset": {"path": "/t.jsonl", "default_workflow_type": "math_workflow"}},
    },
}
_TREE: Final[FieldPath] = ("trainer", "trainer_config")
_VLLM: Final[FieldPath] = ("explorer", "rollout_model", "extra_engine_args", "vllm")


def test_every_key_of_verl_misspelt_is_named_at_its_place() -> None:
    score = MutationScore()
    names = {key.name for key in TABLE if not key.name.endswith(".*")}
    words = {word for name in names for word in name.split(".")}
    for name in sorted(names):
        section, last = name.rsplit(".", 1) if "." in name else ("", name)
        wrong = misspelt(last)
        if len(last) < 5 or wrong in words or not section:
            continue
        path = ("trainer", "trainer_config", *section.split("."), wrong)
        score.add(_BASE, [Mutation(path, 1, meant=last)])
    assert score.made > 100
    score.check()


def test_every_key_of_verl_of_another_type_or_size_is_named_at_its_place() -> None:
    score = MutationScore()
    wrong: dict[str, tuple[Any, ...]] = {
        "bool": ("yes please", 2),
        "count": ("many", 0, 1.5, True),
        "int": ("many", 1.5),
        "number": ("many", [1]),
        "text": ([1], {"a": 1}),
        "texts": ({"a": 1}, [1]),
        "any": (),
    }
    for number in range(max(map(len, wrong.values()))):
        # Below `rollout` the tree has the keys of actor_rollout_ref.rollout, as the guide has it.
        names = [key for key in TABLE if not key.name.endswith(".*") and not key.name.startswith("rollout.")]
        known = [key for key in names if len(wrong[key.kind]) > number]
        values = [Mutation((*_TREE, *key.name.split(".")), copy.deepcopy(wrong[key.kind][number])) for key in known]
        for chunk in batched(values):
            score.add(_BASE, chunk)
    assert score.made > 300
    score.check()


def test_every_argument_of_vllm_misspelt_or_of_another_type_is_named_at_its_place() -> None:
    score = MutationScore()
    base = with_field(_BASE, ("explorer", "rollout_model", "engine_type"), "vllm")
    wrong = {misspelt(name): name for name in ASYNC_ENGINE_ARGS if len(name) > 3}
    names = [Mutation((*_VLLM, one), 1, meant=name) for one, name in wrong.items() if one not in ASYNC_ENGINE_ARGS]
    typed = [name for name, kind in ASYNC_ENGINE_ARGS.items() if kind is not Any and name != "hf_token"]
    values = [Mutation((*_VLLM, name), [["wrong"]]) for name in typed]
    for mutations in (names, values):
        for chunk in batched(mutations):
            score.add(base, chunk)
    # A secret is named where its text is, whatever lies around it.
    score.add(base, [Mutation((*_VLLM, "hf_token"), "hf_secret")])
    assert score.made > 450
    score.check()
