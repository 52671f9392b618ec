"""Files opened in the studio: saved unchanged they resolve as by the command line, and errors are those of a check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from synthetic.daemon.config_fields import schema_fields, with_field
from synthetic.daemon.config_mutations import Mutation, batched, misspelt
from synthetic.daemon.experiment_files import TEXT, config, overlaid

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.daemon.config.verl.importing import import_script
from rftd.ops.errors import ConfigError

pytestmark = pytest.mark.anyio
GOLDEN: Final = Path(__file__).parents[4] / "golden"
RUN: Final = "python3 -m verl.trainer.main_ppo data.train_files=/d/train.jsonl actor_rollout_ref.model.path=/m "
TASKSET: Final = "buffer: {explorer_input: {taskset: "
VARIANTS: Final = (
    "{}",
    "algorithm: {algorithm_type: grpo, repeat_times: 8, optimizer: {lr: 5.0e-7, lr_warmup_steps: 3}}",
    "algorithm: {advantage_fn: grpo, advantage_fn_args: {epsilon: 1.0e-5}}",
    "algorithm: {kl_loss_fn: k2, kl_loss_fn_args: {kl_coef: 0.01}}",
    "algorithm: {policy_loss_fn: ppo, policy_loss_fn_args: {clip_range: 0.3}}",
    "algorithm: {sample_strategy: staleness_control, sample_strategy_args: {max_staleness: 2}}",
    "algorithm: {entropy_loss_fn: none}",
    "model: {max_model_len: 4096, max_response_tokens: 1024}",
    "model: {max_prompt_tokens: 40, enable_prompt_truncation: true}",
    "buffer: {batch_size: 8, train_batch_size: 16}",
    "buffer: {total_epochs: 3, total_steps: null}",
    TASKSET + "{split: train, format: {prompt_key: question, response_key: answer}}}}",
    TASKSET + "{rollout_args: {temperature: 0.7, logprobs: 0}}}}",
    TASKSET + "{default_reward_fn_type: math_reward, repeat_times: 4}}}",
    TASKSET + "{default_workflow_type: simple_workflow, default_reward_fn_type: accuracy_reward}}}",
    "buffer: {explorer_input: {eval_tasksets: [{name: held, path: /e.jsonl, default_workflow_type: math_workflow}]}}",
    "explorer: {eval_interval: 10, runner_per_model: 8}",
    "explorer: {max_timeout: 900, max_retry_times: 1}",
    "explorer: {rollout_model: {engine_type: fake, engine_num: 2}}",
    "trainer: {trainer_type: fake, save_interval: 50}",
    "trainer: {max_checkpoints_to_keep: 3}",
    "synchronizer: {sync_method: checkpoint, sync_interval: 2, sync_timeout: 600}",
    "synchronizer: {sync_style: fully_async, sync_interval: 1}",
    "monitor: {monitor_type: tensorboard}",
    "cluster: {node_num: 1, gpu_per_node: 4}",
    "labels: {team: math}\npriority: 3",
)
"""Sections of Trinity-style files, laid over the smallest one."""
SETTINGS: Final = (
    "algorithm.adv_estimator=grpo",
    "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=5",
    "algorithm.adv_estimator=rloo data.train_batch_size=64",
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.optim.lr=5e-7",
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True",
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_mini_batch_size=128 data.train_batch_size=256",
    "algorithm.adv_estimator=grpo data.max_prompt_length=256 data.max_response_length=2048",
    "algorithm.adv_estimator=grpo trainer.total_epochs=3",
    "algorithm.adv_estimator=grpo trainer.total_training_steps=40 trainer.save_freq=20",
    "algorithm.adv_estimator=grpo trainer.nnodes=1 trainer.n_gpus_per_node=4",
    "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.temperature=0.8",
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.clip_ratio=0.1",
    "algorithm.adv_estimator=grpo data.val_files=/d/test.jsonl trainer.test_freq=5",
    "algorithm.adv_estimator=grpo trainer.project_name=mine trainer.experiment_name=first",
    "algorithm.adv_estimator=reinforce_plus_plus",
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.grad_clip=0.5",
    "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.entropy_coeff=0.001",
)
"""Overrides of veRL's command, each in a script of its own."""


def scripts() -> list[str]:
    """Scripts of veRL: two whole ones, and one for each of the overrides."""
    whole = [(GOLDEN / "verl" / name).read_text() for name in ("grpo.sh", "ppo.sh")]
    return [*whole, *(f"set -x\nRUN='{RUN}'\n$RUN {settings} $@\n" for settings in SETTINGS)]


def resolved(text: str) -> Any:
    """The specification of a text, or the errors of its check, as the command line has them."""
    try:
        return load_text(text, "exp.yaml", environ={}, cwd=Path("/w")).spec
    except ConfigErrors as errors:
        return [(error.field, error.what, error.fix) for error in errors.errors]


async def opened(client: httpx.AsyncClient, text: str) -> dict[str, Any]:
    answer = await client.post("/v1/experiments/draft", json={"text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_trinity_file_saved_unchanged_resolves_as_it_does_on_the_command_line(
    client: httpx.AsyncClient,
) -> None:
    texts = [yaml.safe_dump(overlaid(config(), yaml.safe_load(variant)), sort_keys=False) for variant in VARIANTS]
    assert len(texts) == 26
    accepted = 0
    for text in [TEXT, (GOLDEN / "config" / "guide.yaml").read_text(), *texts]:
        view = await opened(client, text)
        assert resolved(view["text"]) == resolved(text), text
        accepted += not isinstance(resolved(text), list)
    assert accepted > 20


async def test_a_verl_script_opened_and_saved_resolves_as_the_imported_file(client: httpx.AsyncClient) -> None:
    texts = scripts()
    assert len(texts) == 20
    for text in texts:
        answer = await client.post("/v1/experiments/import-verl", json={"text": text})
        assert answer.status_code == 200, answer.text
        imported = import_script(text, "run.sh").text
        assert answer.json()["text"] == imported
        saved = (await opened(client, imported))["text"]
        assert fields_of(resolved(saved)) == fields_of(resolved(imported)), text


def fields_of(outcome: Any) -> Any:
    """A specification as it is; of errors the fields and words: a gap's comment with its candidates is not saved."""
    return [(field, what) for field, what, _ in outcome] if isinstance(outcome, list) else outcome


def mutations() -> Iterator[Mutation]:
    """A misspelt name and a value of a wrong kind for each field of the schema."""
    fields = [field for field in schema_fields() if not field.kind]
    names = {field.name for field in fields}
    for field in fields:
        path = tuple("sft" if key == "NAME" else key for key in field.path)
        wrong = misspelt(field.name)
        if wrong not in names and len(wrong) > 1:
            yield Mutation((*path[:-1], wrong), 1, meant=field.name)
        yield Mutation(path, [["wrong"]])


async def test_errors_of_mutated_files_are_those_of_the_command_line_with_their_fields(
    client: httpx.AsyncClient,
) -> None:
    chunks = list(batched(list(mutations())))
    assert sum(map(len, chunks)) >= 500
    for chunk in chunks:
        tree = config()
        for mutation in chunk:
            tree = with_field(tree, mutation.path, mutation.value)
        text = yaml.safe_dump(tree, sort_keys=False)
        with pytest.raises(ConfigErrors) as refused:
            load_text(text, "exp.yaml", environ={}, cwd=Path("/w"))
        view = await opened(client, text)
        shown = {(error["field"], error["what"], error["fix"]) for error in view["errors"]}
        told = {
            (error.field, error.what, error.fix) for error in refused.value.errors if isinstance(error, ConfigError)
        }
        assert shown == told
