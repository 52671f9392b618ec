"""Figures of vLLM's log-probabilities and updates against transformers, from tests/engines/test_vllm_policy.py.

Runs in the environment of the CPU engines. Each model starts an engine; a test that fails fails the script.

    build/engines-cpu/bin/python -P tests/bench/vllm_policy.py [--models "tied, biases;untied, no biases"]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures import read_options, tell

ROOT = Path(__file__).parents[2]
ALL = "tied, biases;untied, biases;tied, no biases;untied, no biases"
TWO = "untied, no biases, two workers;tied, biases, two workers"


def main() -> None:
    asked = read_options(__doc__, models=f"{ALL};{TWO}")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "figures"
        environment = {**os.environ, "RFTD_ENGINE_FIGURES": str(found), "RFTD_ENGINE_MODELS": asked.models}
        command = [sys.executable, "-P", "-m", "pytest", "-q", "--tb=short", "tests/engines/test_vllm_policy.py"]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr)
        if done.returncode:
            sys.exit(done.returncode)
        tell({"models": [json.loads(line) for line in found.read_text().splitlines()], "load": os.getloadavg()})


if __name__ == "__main__":
    main()
