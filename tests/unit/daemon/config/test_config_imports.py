"""What a check of a file does not import: a command that only checks one is to answer at once."""

from __future__ import annotations

import subprocess
import sys

from synthetic.daemon.experiment_files import TEXT

CHECKS = """
import sys
from pathlib import Path

sys.modules.update(dict.fromkeys(("numpy", "psutil", "torch")))  # to import one of them is an error
from rftd.daemon.config.loading import load_text
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.algorithms.registry import ALGORITHMS
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.learning.losses.registry import POLICY_LOSSES

FILE = sys.argv[1]
TASKSET = "buffer.explorer_input.taskset"
for field, names in (
    ("algorithm.algorithm_type", ALGORITHMS.ours()),
    ("algorithm.advantage_fn", ADVANTAGES.ours()),
    ("algorithm.policy_loss_fn", POLICY_LOSSES.ours()),
    (f"{TASKSET}.default_workflow_type", WORKFLOWS.ours()),
    (f"{TASKSET}.default_reward_fn_type", REWARDS.ours()),
):
    for name in names:
        try:
            load_text(FILE, "f.yaml", overrides=[f"{field}={name}"], environ={}, cwd=Path("/w"))
        except Exception as error:
            if "import of" in str(error):
                print(field, name, error)
"""


def test_no_part_that_a_file_names_has_a_check_import_arrays() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", CHECKS, TEXT], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
