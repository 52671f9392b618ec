"""Keys of veRL: misspelled ones, wrong types, Hydra's values and signs, `${...}`, and Hydra files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.verl.hydra import HydraProblem, read_value
from rftd.daemon.config.verl.importing import import_command, import_file, import_tree
from rftd.daemon.config.verl.table import TABLES, find, meant

Fields = Callable[..., dict[str, Any]]
Refused = Callable[[str], str]
RUN = "python3 -m verl.trainer.main_ppo \\\n  algorithm.adv_estimator=grpo \\\n  data.train_files=d/train.jsonl \\\n  "


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-6", 1e-6), ("-1", -1), ("1_000", 1000), (".5", 0.5), ("010", "010"), ("1e999", "1e999")),
        *(("True", True), ("false", False), ("null", None), ("None", None), ("", ""), ("yes", "yes")),
        *(("'a b'", "a b"), ('"1"', "1"), ("a b", "a b"), ("'it\\'s'", "it's")),
        *(("[]", []), ("[a,'b',\"c\",1,null]", ["a", "b", "c", 1, None]), ("[[1],[2]]", [[1], [2]])),
        *(("{a: 1, b: [x]}", {"a": 1, "b": ["x"]}), ("${a.b}/c", "${a.b}/c"), ("${x:a,b}", "${x:a,b}")),
    ],
)
def test_a_value_is_read_as_hydra_does(text: str, value: object) -> None:
    assert read_value(text) == value


@pytest.mark.parametrize("text", ["[a", "{a: 1", "{a}", "'a", "1,2", "choice(1,2)", "[a]b", "[" * 99])
def test_what_is_no_value_is_said(text: str) -> None:
    with pytest.raises(HydraProblem):
        read_value(text)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.adv_estimater=grpo", "did you mean 'algorithm.adv_estimator'?"),
        ("actor_rollout_ref.rolout.n=8", "did you mean 'actor_rollout_ref.rollout.n'?"),
        ("trainer.n_gpu_per_node=8", "did you mean 'trainer.n_gpus_per_node'?"),
        (
            "actor_rollout_ref.ref.fsdp_config.parm_offload=True",
            "did you mean 'actor_rollout_ref.ref.fsdp_config.param",
        ),
        ("data.train_batch_size=many", "is 'many', but veRL expects a whole number"),
        ("data.train_batch_size=0", "is 0, which is not a multiple of actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("data.train_batch_size=1.5", "is 1.5, but veRL expects"),
        ("actor_rollout_ref.actor.use_kl_loss=1", "veRL expects true or false"),
        ("data.train_files=[1,2]", "veRL expects text, or a list of texts"),
        ("data.train_files=[a", "the list is not closed"),
        ("data.val_files=[" + "a," * 101 + "]", "names 101 files, and 100 are read at most"),
        ("actor_rollout_ref.actor.optim.lr=1e-6,1e-5", "is a sweep over several values"),
        ("actor@actor_rollout_ref.actor=my_actor", "the default 'actor@actor_rollout_ref.actor my_actor' is unknown"),
        (
            "trainer.project_name='${trainer.experiment_name}' trainer.experiment_name='${trainer.project_name}'",
            "refers to itself",
        ),
        ("data.train_batch_size='${data.train_files}'", "but veRL expects a whole number"),
        ("trainer.project_name='${open'", "is not closed"),
    ],
)
def test_a_wrong_key_is_shown_at_its_line(refused: Refused, override: str, said: str) -> None:
    text = refused(RUN + override)
    assert "--> run.sh:4:3" in text
    assert said in text


def misspelled(name: str) -> Iterator[str]:
    """Names with a letter too few, too many, or two exchanged, in the word or in its section."""
    section, _, word = name.rpartition(".")
    middle = len(word) // 2
    if len(word) > 2:
        yield f"{section}.{word[:middle]}{word[middle + 1 :]}"
        yield f"{section}.{word[:middle]}{word[middle + 1 : middle + 2]}{word[middle]}{word[middle + 2 :]}"
        yield f"{section}.{word[:middle]}{word[middle]}{word[middle:]}"
        yield f"{section}.{word[:-1]}"
    yield f"{section[:-1]}.{word}"


def test_misspelled_keys_of_the_guide_are_told_by_their_right_names() -> None:
    names = {key.name for key in TABLES.keys["guide"] if not key.name.endswith("*")}
    cases = [(name, wrong) for name in names for wrong in misspelled(name) if wrong not in names]
    right = [name for name, wrong in cases if meant(wrong) == name]
    assert len(cases) > 300
    assert len(right) >= 0.98 * len(cases)
    # Whoever is told no name is told that the key is unknown: none is taken for another key without a word.
    assert [wrong for _, wrong in cases if meant(wrong) is None and find(wrong) is not None] == []


def test_all_errors_come_at_once(refused: Refused) -> None:
    text = refused(f"{RUN}data.train_batch_sise=1 \\\n  data.shuffle=2 \\\n  trainer.nnodes=x")
    assert [place for place in ("run.sh:4:3", "run.sh:5:3", "run.sh:6:3") if f"--> {place}" in text] == [
        *("run.sh:4:3", "run.sh:5:3", "run.sh:6:3")
    ]


def outcome(*overrides: str) -> dict[str, str]:
    """What became of each key."""
    imported = import_command(["data.train_files=d/train.jsonl", "algorithm.adv_estimator=grpo", *overrides])
    return {line.key.partition("=")[0]: line.outcome for line in imported.lines}


def test_hydras_signs() -> None:
    assert outcome("+trainer.tiling=3")["trainer.tiling"] == "unknown"
    assert outcome("trainer.tiling=3")["trainer.tiling"] == "unknown"
    assert outcome("++data.shuffle=False")["data.shuffle"] == "mapped"
    assert outcome("data.shuffle=False", "~data.shuffle")["~data.shuffle"] == "dropped"
    assert outcome("data.shuffle=null")["data.shuffle"] in ("dropped", "veRL's default")
    assert outcome("-cn", "ppo_trainer", "--multirun")["--multirun"] == "dropped"


def test_what_the_guide_does_not_name_is_dropped_or_needs_a_person() -> None:
    found = outcome(
        *("actor_rollout_ref.rollout.free_cache_engine=False", "actor_rollout_ref.rollout.multi_turn.enable=True"),
        *("custom_reward_function.path=/r.py", "global_profiler.tool=nsys"),
    )
    assert found["actor_rollout_ref.rollout.free_cache_engine"] == "dropped"
    assert found["actor_rollout_ref.rollout.multi_turn.enable"] == "needs a person"
    assert found["custom_reward_function.path"] == "needs a person"
    assert found["global_profiler.tool"] == "dropped"


def test_references_are_followed_among_keys_and_defaults(fields: Fields) -> None:
    found = fields(
        *(
            "trainer.experiment_name='${trainer.project_name}-a'",
            "data.max_response_length='${data.max_prompt_length}'",
        ),
        *("trainer.total_epochs='${oc.select:data.nothing,3}'", "trainer.project_name='${oc.env:WHO}'"),
    )
    assert found["name"] == "${oc.env:WHO}-a"
    assert found["model.max_response_tokens"] == 512
    assert found["buffer.total_epochs"] == 3


def test_a_reference_that_leads_nowhere_needs_a_person() -> None:
    assert outcome("trainer.project_name='${now:%Y}'")["trainer.project_name"] == "needs a person"
    assert outcome("data.seed='${data.nothing}'")["data.seed"] == "needs a person"


def test_references_that_multiply_one_another_come_to_an_end() -> None:
    keys = [f"+x.k{at}=" + f"'${{x.k{at + 1}}}" + f"${{x.k{at + 1}}}" * 9 + "'" for at in range(11)]
    assert "unknown" not in outcome(*(key.replace("'", "") for key in keys), "+x.k11=y").get("x.k0", "")


TREE = """\
hydra:
  searchpath: [file://verl/trainer/config]
defaults:
  - ppo_trainer
  - actor@actor_rollout_ref.actor: dp_actor
  - _self_
data:
  train_files: d/train.jsonl
  max_prompt_length: 2048
  train_batch_size: 64
  val_files: ???
actor_rollout_ref:
  actor:
    _target_: verl.workers.config.FSDPActorConfig
    ppo_mini_batch_size: ${data.train_batch_size}
    optim: {lr: 1e-6}
  rollout:
    n: 4
    response_length: ${data.max_prompt_length}
algorithm:
  adv_estimator: grpo
"""


def test_a_hydra_file_with_overrides_over_it(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TREE)
    text = import_file(tmp_path / "run.yaml", ["actor_rollout_ref.rollout.n=2"]).text
    assert "batch_size: 64  # actor_rollout_ref.actor.ppo_mini_batch_size\n" in text
    assert "repeat_times: 2  # actor_rollout_ref.rollout.n\n" in text
    assert "sync_interval: 1 " in text
    assert "lr: 1.0e-6" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("- ppo_trainer", "- my_trainer", "run.yaml:4:5"),
        ("dp_actor", "my_actor", "run.yaml:5:"),
        ("max_prompt_length: 2048", "max_promt_length: 2048", "did you mean 'data.max_prompt_length'?"),
        ("n: 4", "n: 4\n    n: 5", "the key appears twice"),
        ("adv_estimator: grpo", "adv_estimator: [", "not valid YAML"),
        ("adv_estimator: grpo", "adv_estimator: grpoo", "did you mean 'grpo'?"),
        ("adv_estimator: grpo", "adv_estimator: my_own_baseline", "has no counterpart in rftd"),
        ("train_batch_size: 64", "train_batch_size: 64.0", "run.yaml:10:21"),
    ],
)
def test_what_is_wrong_in_a_hydra_file(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        import_tree(TREE.replace(old, new), "run.yaml")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"# \xc3\xa9" * 300_000, "larger than 1,048,576 bytes"),
        (b"caf\xe9", "not UTF-8 text"),
        (b"- a\n", "the file must be a mapping of veRL's sections"),
        (b"", "the file is empty"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "run.yaml").write_bytes(data)
    with pytest.raises(ConfigErrors) as caught:
        import_file(tmp_path / "run.yaml")
    assert said in str(caught.value)
