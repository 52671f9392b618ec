"""The lock of all engines with CUDA holds what the project asks for, and a schedule can tell what `newer.py` found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
UV = """
import sys
asked = sys.stdin.read()
if {broken}:
    sys.exit("no index answers")
later = "vllm>=0.31;" in asked.replace(" ", "")
for name in ("vllm", "verl", "ray", "tinker", "torch", "transformers", "numpy", "tensordict", "peft"):
    print(f"{{name}}=={{'2.0' if later and name in {moved!r} else '1.0'}}")
"""
"""A resolver that finds later releases of some packages once nothing bounds them."""


OF_TRACKERS = {"mlflow", "swanlab", "trackio", "wandb"}
"""Extras in a lock of their own, `requirements/trackers.txt`: MLflow bounds packages that the engines have newer."""
OF_ENVIRONMENTS = {"environments"}
"""The extra in `requirements/environments.txt`: packages of reasoning-gym are built from source."""


def test_the_lock_with_cuda_has_every_extra_within_the_project_s_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "requirements" / "engines-cuda.txt").read_text()
    assert "://" not in text
    entries = re.findall(
        r"^([A-Za-z0-9._-]+)==([^\s;]+)[^\n]*\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.M
    )
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9]", text, re.M)), "each has its hashes"
    pinned = {canonicalize_name(name): version for name, version in entries}
    extras = {
        name: rows
        for name, rows in project["optional-dependencies"].items()
        if name not in {"all", *OF_TRACKERS, *OF_ENVIRONMENTS}
    }
    for row in (*project["dependencies"], *(row for rows in extras.values() for row in rows)):
        wanted = Requirement(row)
        if wanted.name == project["name"]:  # an extra beside which it is of use
            assert wanted.extras <= extras.keys()
            continue
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), row
    (everything,) = project["optional-dependencies"]["all"]
    assert Requirement(everything).extras == extras.keys()


@pytest.mark.parametrize(
    ("moved", "broken", "status", "said"),
    [
        ((), False, 0, "no later engine fits"),
        (("numpy",), False, 0, "no later engine fits"),
        (("vllm", "torch"), False, 10, "later ones fit together: vllm"),
        ((), True, 1, "no index answers"),
    ],
)
def test_a_schedule_tells_later_engines_from_nothing_and_from_a_failure(
    tmp_path: Path, moved: tuple[str, ...], broken: bool, status: int, said: str
) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "__init__.py").touch()  # else the real one, which is no namespace, comes first
    (tmp_path / "uv" / "__main__.py").write_text(UV.format(moved=moved, broken=broken))
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "requirements" / "newer.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr
