"""Auxiliary models on vLLM: GPUs of their own in each explorer, where there are enough."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from synthetic.models.gpu_hosts import served

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.loading import Submission
from rftd.daemon.run.supervisor.worker_orders import worker_orders
from rftd.streams.spec.explorer_devices import auxiliary_places

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
SERVICE = "{engine_type: external, model_name: m-1, base_url: 'https://j.test/v1', api_key: {env: JUDGE_KEY}}"


def of(*entries: str) -> str:
    return f"explorer.auxiliary_models=[{', '.join(entries)}]"


TWO_ENGINES = ("explorer.rollout_model.engine_num=2", "explorer.rollout_model.engine_type=vllm")


def test_a_judge_has_gpus_of_its_own_in_each_explorer_where_there_are_enough(load: Load) -> None:
    judges = of("{model_path: /a, tensor_parallel_size: 2}", "{model_path: /b, dtype: float16}", SERVICE)
    submission = load(overrides=[judges, *TWO_ENGINES], host=served(9))
    (stage,) = submission.spec.stages
    first, second, _ = stage.auxiliary
    assert (first.engine, first.dtype, second.engine, second.dtype) == ("vllm", "bfloat16", "vllm", "float16")
    assert (first.needs.device, first.needs.devices, first.needs.tensor_parallel_size) == ("cuda", 2, 2)
    assert [place.gpus for place in auxiliary_places([stage])] == [range(1, 3), range(3, 4), range(4, 4)]
    orders = {order.role: order.devices for order in worker_orders(UUID(int=1), submission.spec, 0)}
    assert orders == {"trainer": 1, "explorer": 4}
    assert effective_config(submission.spec)["derived"]["stages"]["main"]["gpus"]["gpus_per_explorer"] == 4


def test_several_engines_of_a_judge_have_gpus_of_their_own(load: Load) -> None:
    judges = of("{model_path: /a, engine_num: 4, tensor_parallel_size: 2}", "{model_path: /b}")
    submission = load(overrides=[judges, *TWO_ENGINES], host=served(13))
    (stage,) = submission.spec.stages
    first, second = stage.auxiliary
    assert (first.engine, first.engines, first.needs.devices) == ("vllm", 2, 2)
    assert (second.engine, second.engines) == ("vllm", 1)
    assert [place.gpus for place in auxiliary_places([stage])] == [range(1, 5), range(5, 6)]
    orders = {order.role: order.devices for order in worker_orders(UUID(int=1), submission.spec, 0)}
    assert orders == {"trainer": 1, "explorer": 6}
    (shown, _) = effective_config(submission.spec)["explorer"]["auxiliary_models"]
    assert shown["engine_num"] == 4
    (fewer, _) = load(overrides=[judges, *TWO_ENGINES], host=served(12)).spec.stages[0].auxiliary
    assert fewer.engine == "torch"


@pytest.mark.parametrize("gpus", [3, 5])
def test_default_judge_uses_torch_without_free_gpus_and_a_vllm_judge_is_refused(
    load: Load, errors: Errors, gpus: int
) -> None:
    unwritten = of("{model_path: /a, tensor_parallel_size: 2}")
    judge = of("{model_path: /a, engine_type: vllm, tensor_parallel_size: 2}")
    if gpus == 5:  # two are counted for it, and stay free
        (own,) = load(overrides=[unwritten, *TWO_ENGINES], host=served(gpus)).spec.stages[0].auxiliary
        assert (own.engine, own.needs.devices) == ("torch", 0)
    (text,) = errors(overrides=[judge, *TWO_ENGINES], host=served(gpus))
    assert "2 engines x 1 take 2 and auxiliary models 4: 0 are left for the trainer" in text


def test_a_deterministic_experiment_a_teacher_and_one_device_leave_vllm_out(load: Load, errors: Errors) -> None:
    unwritten = of("{model_path: /a}")
    teacher = ("algorithm={algorithm_type: on_policy_distill}", "model.model_path=/m")
    for overrides in (["deterministic=true"], ["mode=colocate"], teacher):
        (own,) = load(overrides=[unwritten, *overrides], host=served(8)).spec.stages[0].auxiliary
        assert (own.engine, own.needs.devices) == ("torch", 0)
    judge = of("{model_path: /a, engine_type: vllm}")
    (text,) = errors(overrides=[judge, "mode=colocate"], host=served(8))
    assert "auxiliary_models[0].engine_type: is vllm with dedicated GPUs, but mode colocate uses one device" in text
    judge = of("{model_path: /a, engine_type: vllm, pipeline_parallel_size: 2}")
    (text,) = errors(overrides=[judge], host=served(8))
    assert "auxiliary_models[0].pipeline_parallel_size: is 2, but an engine of the model is not spread this way" in text
