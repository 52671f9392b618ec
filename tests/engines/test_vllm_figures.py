"""The bench of a GPU runs its path of vLLM with a tiny model on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "bench" / "gpu_figures.py"


def test_its_figures_of_vllm_are_all_measured() -> None:
    command = [sys.executable, "-P", str(SCRIPT), "--tiny", "--engines", "vllm"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (model,) = told["models"]
    vllm = model["vllm"]
    for name in ("open_s", "tokens_per_s", "into_running_engine_s", "trained_tokens_per_s", "of_matmul"):
        assert vllm[name] > 0, name
    assert vllm["longest_gap_near_update_ms"] > 0
    assert model["device_to_mapped_file_s"] > 0
    # bfloat16 on both sides.
    assert vllm["mismatch"]["mismatch/k3/max"] < 1e-2
    assert (told["not_installed"], "torch" in model) == ([], False)
