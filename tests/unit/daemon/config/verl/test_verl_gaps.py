"""What a script leaves open is a gap in the file, which the check refuses; choices on the command line fill it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.daemon.config.verl.importing import ImportedExperiment, import_script, import_tree
from rftd.daemon.config.verl.shell.script import ShellChoices
from rftd.workers.devices.host import ANY_HOST

RUN = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=./d/train.jsonl "
    "actor_rollout_ref.model.path=./m actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=8 "
)
LENGTH = f'if [ -n "$BIG" ]; then\n  LEN=8192\nelse\n  LEN=1024\nfi\n{RUN}data.max_response_length=$LEN'
LISTS = f"""\
ROLL=(actor_rollout_ref.rollout.temperature=0.6)
TR=(trainer.total_epochs=3 trainer.project_name=mine)
if [ "$TWO" = 1 ]; then
  ROLL+=(actor_rollout_ref.rollout.top_p=0.9)
  TR+=(trainer.save_freq=7)
fi
{RUN}"${{ROLL[@]}}" "${{TR[@]}}" $@
"""


def imported(script: str, choices: ShellChoices | None = None) -> ImportedExperiment:
    return import_script(script, "run.sh", choices=choices)


def gaps(script: str, choices: ShellChoices | None = None) -> dict[str, str]:
    """The fields that the check of the import names as gaps, with their comments."""
    text = imported(script, choices).text
    lines = [line for line in text.splitlines() if ": ???" in line]
    named = {line.partition(":")[0].strip(): line.partition("  # ")[2] for line in lines}
    try:
        load_text(text, "out.yaml", environ={"HOME": "/h"}, cwd=Path("/w"), host=ANY_HOST)
    except ConfigErrors as errors:
        assert all("is a gap (`???`): its value is missing" in str(error) for error in errors.errors)
        assert sorted(str(error.field).rpartition(".")[2] for error in errors.errors) == sorted(named)
    else:
        assert named == {}
    return named


def test_a_value_under_a_condition_is_a_gap_with_its_candidates() -> None:
    assert gaps(LENGTH) == {
        "max_response_tokens": "8192 or 1024: data.max_response_length: LEN is set on line 2 under a condition"
    }
    (line,) = [line for line in imported(LENGTH).lines if line.key == "data.max_response_length"]
    assert line.outcome == "needs a person"
    assert line.text.endswith("-> a gap: model.max_response_tokens")


def test_of_lists_that_grow_under_a_condition_the_certain_part_stays() -> None:
    assert set(gaps(LISTS)) == {"top_p", "save_interval"}
    text = imported(LISTS).text
    assert "temperature: 0.6  #" in text
    assert "total_epochs: 3  #" in text
    assert "project: mine  #" in text
    assert "save_interval: ???  # 0 or 28: trainer.save_freq" in text


@pytest.mark.parametrize(
    ("choices", "length"),
    [
        (ShellChoices(assumed={"BIG": "1"}), 8192),
        (ShellChoices(assumed={"BIG": ""}), 1024),
        (ShellChoices(assumed={"LEN": "77"}), 77),
        (ShellChoices(taken=[2]), 8192),
        (ShellChoices(taken=[4]), 1024),
        (ShellChoices(skipped=[2]), 1024),
        (ShellChoices(skipped=[4], assumed={"OTHER": "x"}), "???"),
    ],
)
def test_choices_decide_a_condition(choices: ShellChoices, length: int | str) -> None:
    assert f"max_response_tokens: {length}  #" in imported(LENGTH, choices).text


def test_choices_decide_lists() -> None:
    assert gaps(LISTS, ShellChoices(assumed={"TWO": "1"})) == {}
    assert "save_interval: 28  #" in imported(LISTS, ShellChoices(taken=[5])).text
    assert "save_interval" not in imported(LISTS, ShellChoices(skipped=[5])).text


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (f"for L in 512 1024; do {RUN} data.max_response_length=$L; done", {"max_response_tokens"}),
        (f"for L in 64 64; do {RUN} data.max_response_length=$L; done", set()),
        (f"case $SIZE in\n7b) N=2;;\n*) N=4;;\nesac\n{RUN} trainer.total_epochs=$N", {"total_epochs"}),
        (f"[ -d x ] && N=2\n{RUN} trainer.total_epochs=$((${{N:-3}} * 2))", {"total_epochs"}),
        (f"EXTRA=\n[ -d x ] && EXTRA='trainer.save_freq=5 data.seed=1'\n{RUN} $EXTRA", {"save_interval", "seed"}),
        (f"{RUN} trainer.total_epochs=$(cat epochs)", {"total_epochs"}),
        (f"{RUN} trainer.total_epochs=$1", {"total_epochs"}),
        (f"{RUN} trainer.nnodes=$NNODES", {"node_num", "engine_num", "tensor_parallel_size"}),
        (f"{RUN} actor_rollout_ref.actor.use_kl_loss=$KL", {"kl_loss_fn", "kl_coef"}),
        (f"B=8\n[ -d x ] && B=16\n{RUN} data.train_batch_size=$B actor_rollout_ref.actor.ppo_mini_batch_size=8",
         {"sync_interval"}),
        (f"if [ -d x ]; then C=64; else C=128; fi\n{RUN} actor_rollout_ref.rollout.max_num_seqs=$C", {"max_num_seqs"}),
        # What both branches come to, and what nothing is made of, leaves no gap.
        (f"if [ -d x ]; then C=64; else C=64; fi\n{RUN} actor_rollout_ref.rollout.max_num_seqs=$C", set()),
        (f"[ -d x ] && V=/a\n{RUN} trainer.rollout_data_dir=$V", set()),
        (f"EXTRA=()\n[ -d x ] && EXTRA+=(trainer.test_freq=5 trainer.total_epochs=30)\n{RUN} ${{EXTRA[@]}}",
         {"eval_interval"}),
    ],
)  # fmt: skip
def test_what_follows_from_an_unknown_value_is_a_gap_and_nothing_else(script: str, fields: set[str]) -> None:
    assert set(gaps(script)) == fields


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("data.image_key=images", "default_workflow_type"),
        ("actor_rollout_ref.rollout.multi_turn.enable=True", "default_workflow_type"),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path=t.yaml", "default_workflow_type"),
        ("actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent", "default_workflow_type"),
        ("data.custom_cls.path=./rows.py", "default_workflow_type"),
        ("custom_reward_function.path=./reward.py", "default_reward_fn_type"),
        ("reward.custom_reward_function.path=./reward.py", "default_reward_fn_type"),
        ("reward_model.sandbox_fusion.url=http://127.0.0.1:1/x", "default_reward_fn_type"),
        ("distillation.enabled=True", "algorithm_type"),
        ("reward_model.enable=True reward_model.model.path=/rm", "default_reward_fn_type"),
        ("actor_rollout_ref.actor.qat.enable=True", "dtype"),
        ("actor_rollout_ref.actor.fsdp_config.qat.enable=True", "dtype"),
        ("actor_rollout_ref.actor.megatron.qat.enable=True", "dtype"),
        (
            "algorithm.adv_estimator=optimal_token_baseline algorithm.rollout_correction.rollout_is=token",
            "advantage_fn",
        ),
    ],
)
def test_what_a_person_has_to_build_is_a_gap(override: str, field: str) -> None:
    assert set(gaps(RUN + override)) == {field}


@pytest.mark.parametrize(
    "override",
    [
        *(
            "actor_rollout_ref.rollout.multi_turn.enable=False",
            "custom_reward_function.path=null",
            "data.image_key=null",
        ),
        *("actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent", "distillation.enabled=False"),
    ],
)
def test_what_is_off_is_no_gap(override: str) -> None:
    assert gaps(RUN + override) == {}


DEFAULTS = "data: {image_key: images, video_key: videos, prompt_key: prompt, return_raw_input_ids: false, %s}"


@pytest.mark.parametrize(
    ("data", "gap"),
    [
        (DEFAULTS % "truncation: error", False),
        (DEFAULTS.replace("images, ", "pictures, ") % "truncation: error", True),
        ("data: {image_key: images}", True),
    ],
)
def test_a_whole_dump_of_verls_defaults_names_no_images(data: str, gap: bool) -> None:
    tree = f"algorithm: {{adv_estimator: grpo}}\nactor_rollout_ref: {{model: {{path: /m}}}}\n{data}\n"
    experiment = import_tree(tree, "config.yaml")
    assert ("default_workflow_type: ???" in experiment.text) is gap
    (line,) = (line for line in experiment.lines if line.key.startswith("data.image_key"))
    assert line.outcome == ("needs a person" if gap else "dropped")


@pytest.mark.parametrize(
    ("script", "epochs"),
    [
        ("for E in 1 2 3; do [ $E = 2 ] && break; done", "2"),
        ("E=9\nfor i in 1 2 3; do [ $i = 3 ] && continue; E=$i; done", "2"),
        ("for i in 1 2; do for j in 3 4; do E=$i$j; break 2; done; done", "13"),
        ("for i in 1 2; do for j in 3 4; do E=$i$j; break; done; done", "23"),
        ("E=9\nfor i in 1 2; do if [ $i = 1 ]; then E=5; break; fi; E=6; done", "5"),
        ("E=9\nfor i in 1 2; do [ -d x ] && break; E=$i; done", "??? 1 2 9"),
        ("E=9\nfor i in 1 2; do [ -d x ] && continue; E=$i; done", "??? 1 2 9"),
        ("E=9\nwhile [ -d x ]; do E=4; break; done", "??? 4 9"),
        ("E=9\nfunction f() { [ -d x ] && return; E=2; }\nf", "??? 2 9"),
        ("function f() { break; }\nfor E in 1 2; do f; done", "2"),
    ],
)
def test_a_loop_ends_where_the_shell_ends_it(script: str, epochs: str) -> None:
    text = imported(f"{script}\n{RUN} trainer.total_epochs=$E").text
    (line,) = (line for line in text.splitlines() if "total_epochs:" in line)
    value, _, comment = line.partition("#")
    candidates = sorted(re.findall(r"\b\d+\b", comment.partition(": trainer.")[0]))
    shown = [value.split(":")[1].strip(), *(candidates if "???" in value else [])]
    assert " ".join(shown) == epochs


def test_keys_of_a_branch_that_the_script_decides_against_are_named() -> None:
    script = f"""MODE=a
if [ $MODE = a ]; then
    {RUN} trainer.total_epochs=2
else
    {RUN} data.seed=3 trainer.total_epochs=7  # data.shuffle=True
fi
"""
    said = [str(line) for line in imported(script).lines if "decides against" in line.text]
    assert said == [f"run.sh:5:{len(RUN) + 6}: dropped: data.seed=3 (the script decides against this branch)"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"{RUN} $(python3 arguments.py)", "ambiguous keys: $(python3 arguments.py) is a command"),
        (
            f"mapfile -t ARGS < list\n{RUN} ${{ARGS[@]}}",
            "ambiguous keys: the script sets ARGS while it runs",
        ),
        (f"{RUN} $1.total_epochs=3", "ambiguous keys: $1 is an argument of the script"),
        (f"if [ -d x ]; then\n{RUN}\nelse\n{RUN} data.seed=2\nfi", "choose a branch with --take LINE or --skip LINE"),
        (f"{RUN} --config-name $CONFIG_{{x}} trainer.total_epochs=3\n[ -d x ]", "is unknown"),
    ],
)
def test_what_has_no_place_in_a_file_is_refused(script: str, said: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        imported(script)
    assert said in str(caught.value)


def test_one_of_two_commands_is_taken_by_its_line() -> None:
    script = f"if [ -d x ]; then\n{RUN} data.seed=1\nelse\n{RUN} data.seed=2\nfi"
    assert "seed: 2  #" in imported(script, ShellChoices(taken=[4])).text
