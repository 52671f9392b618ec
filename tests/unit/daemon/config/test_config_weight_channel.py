"""`synchronizer.sync_method`: the channel that is asked for, where it can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic.docs.package import install_packed_weights
from synthetic.models.gpu_hosts import gpus

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("given", "method"),
    [
        (["sync_method=memory", "memory_dir=/run/shm"], "memory"),
        (["sync_method=checkpoint"], "checkpoint"),
        (["sync_method=nccl"], "checkpoint"),
    ],
)
def test_the_weight_channel_is_the_one_asked_for_where_it_can_be(load: Load, given: list[str], method: str) -> None:
    sync = load(overrides=[f"synchronizer.{each}" for each in given]).spec.stages[0].synchronizer
    assert sync.sync_method == method
    assert sync.memory_dir == ("/run/shm" if method == "memory" else "")


@pytest.mark.parametrize(
    ("count", "given", "method"),
    [
        (2, [], "nccl"),
        (1, [], "checkpoint"),
        (2, ["explorer.rollout_model.engine_type=torch", "trainer.engine_args.device=cpu"], "checkpoint"),
        (2, ["deterministic=true"], "checkpoint"),
        (2, ["mode=colocate"], "memory"),
    ],
)
def test_weights_go_from_gpu_to_gpu_where_both_sides_have_one_of_their_own(
    load: Load, count: int, given: list[str], method: str
) -> None:
    found = load(overrides=["synchronizer.sync_method=nccl", *given], host=gpus(count))
    assert found.spec.stages[0].synchronizer.sync_method == method


def test_what_was_not_run_on_gpus_is_chosen_only_where_it_is_written(load: Load) -> None:
    found = load(host=gpus(2)).spec
    assert found.stages[0].synchronizer.sync_method == "checkpoint"
    assert any("nccl has only been tested between CPUs" in warning for warning in found.warnings)


def test_the_weight_channel_of_a_third_party_is_known_once_it_is_installed(
    load: Load, errors: Errors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = "synchronizer.sync_method=packed"
    (text,) = errors(overrides=[packed])
    assert "unknown weight channel 'packed'; known: checkpoint, memory, nccl" in text
    assert "'rftd.weight_channels'" in text
    (text,) = errors(overrides=["synchronizer.sync_method=memroy"])
    assert "did you mean 'memory'" in text
    install_packed_weights(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load(overrides=[packed]).spec.stages[0].synchronizer.sync_method == "packed"


def test_pinned_versions_between_two_announcements_must_outlive_a_reboot(load: Load, errors: Errors) -> None:
    memory = ["deterministic=true", "synchronizer.sync_method=memory"]
    assert load(overrides=memory).spec.stages[0].synchronizer.sync_method == "memory"
    assert (
        load(overrides=[*memory, "synchronizer.sync_interval=2"]).spec.stages[0].synchronizer.sync_method
        == "checkpoint"
    )
    (text,) = errors(overrides=["synchronizer.memory_dir=shm"])
    assert "must be an absolute path" in text
