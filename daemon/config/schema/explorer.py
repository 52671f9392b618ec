"""Section `explorer`: how tasks are tried."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rftd.daemon.config.schema.rollout_model import AuxiliaryModel, RolloutModel
from rftd.daemon.config.schema.section import Count, Natural, Seconds, Section, Url, inert, section, word


class OverRollout(Section):
    """`explorer.over_rollout`: go on before the slowest tasks are done."""

    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    wait_after_min: Annotated[float, Field(ge=0)] = 30.0
    return_partial_tasks: bool = False


class DynamicTimeout(Section):
    """`explorer.dynamic_timeout`: a time-out that follows recent durations."""

    enable: bool = False
    warmup_min_steps: Natural = 1
    ratio: Annotated[float, Field(gt=0)] = 3.0


class StragglerReissue(Section):
    """`explorer.straggler_reissue`: what is slow is given to an idle explorer too. rftd's own; the guide has none."""

    enable: bool = False
    ratio: Annotated[float, Field(ge=1)] = 3.0
    """A lease is slow after so many recent mean durations."""


class Explorer(Section):
    """`explorer`."""

    name: str = inert("explorer")
    runner_per_model: Count = 8
    runner_prepare_concurrency: Count = inert(8)
    runner_prepare_max_retries: Natural = inert(2)
    max_timeout: Seconds = 1800.0
    max_retry_times: Natural = 2
    env_vars: dict[str, Any] = {}
    """Each value `{env: NAME}`: workers read it where they run."""
    concurrent_mode: Annotated[Literal["sequential", "asynchronous", "multi-threading"], word()] = "sequential"
    max_repeat_times_per_runner: Count | None = None
    rollout_model: RolloutModel = section(RolloutModel)
    auxiliary_models: list[AuxiliaryModel] = []
    eval_interval: Natural = 100
    eval_on_startup: bool = True
    bench_on_latest_checkpoint: bool = inert(False)
    proxy_port: Natural = inert(8010)
    listen_address: str = inert("0.0.0.0")  # noqa: S104 — the guide's default; nothing listens here
    service_status_check_interval: Seconds = inert(60.0)
    min_running_model_num: Count = inert(1)
    db_url: Url = inert(None)
    over_rollout: OverRollout = section(OverRollout)
    dynamic_timeout: DynamicTimeout = section(DynamicTimeout)
    straggler_reissue: StragglerReissue = section(StragglerReissue)
    runner_state_report_interval: Annotated[float, Field(ge=0)] = inert(0.0)
    collect_only: bool = False
    """rftd's own, with `mode: explore`: nobody will train; the experiment ends when every task has been tried."""
    max_inflight_batches: Count = 2
    """How far explorers run ahead with `fully_async`."""
