"""The bench of a GPU: every path of it runs with a tiny model on a CPU, and without a GPU it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "gpu_figures.py"


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    # No GPU is seen, whatever the machine has.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-P", str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_figures_without_a_gpu_are_refused_and_with_a_tiny_model_are_complete() -> None:
    refused = ran()
    assert (refused.returncode, refused.stdout) == (0, "not run: no GPU\n"), "make bench goes on"
    # vLLM has a test of its own, in tests/engines.
    done = ran("--tiny", "--engines", "torch")
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(done.stdout)["models"]
    torch = model["torch"]
    for name in ("tokens_per_s", "into_running_engine_s", "longest_gap_near_update_ms"):
        assert torch[name] > 0, name
    assert model["device_to_mapped_file_s"] > 0
    for kind in ("recomputed, sharing auto", "kept, sharing auto"):
        training = torch[kind]
        for name in ("trained_tokens_per_s", "of_matmul", "step_checksum_ms"):
            assert training[name] > 0, (kind, name)
        assert training["forecast_bytes"] > 4 * training["parameters"]
        assert training["mismatch"]["mismatch/k3/max"] < 1e-2
