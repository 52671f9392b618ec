"""A schedule tells vulnerable pins from none and from a failure, by what pip-audit 2.10.1 prints as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ANSWER = (ROOT / "tests" / "golden" / "pip_audit" / "answer.json").read_text()
CLEAN = json.dumps({"dependencies": [{"name": "jinja2", "version": "3.1.6", "vulns": []}], "fixes": []})
SKIPPED = json.dumps({"dependencies": [{"name": "rftd", "skip_reason": "not found"}], "fixes": []})


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (
            ANSWER,
            10,
            "not looked at: rftd: Dependency not found on PyPI and could not be audited: rftd (0.1.0)\n"
            "flask 0.5: PYSEC-2018-66, no release mends it yet (lock.txt, base.txt)\n"
            "flask 0.5: PYSEC-2019-179, fixed in 1.0 (lock.txt, base.txt)\n",
        ),
        (CLEAN, 0, "no pinned release is known to be vulnerable\n"),
        (SKIPPED, 1, ""),
        ('{"dependencies": [{"name": "flask", "vulns": [{}]}]}', 1, ""),
        ("[]", 1, ""),
        ("", 1, ""),
    ],
)
def test_a_schedule_tells_vulnerable_pins_from_none_and_from_a_failure(
    tmp_path: Path, answer: str, status: int, said: str
) -> None:
    (tmp_path / "pip_audit").mkdir()
    (tmp_path / "pip_audit" / "__init__.py").touch()
    # It exits with 1 both if it finds something and if no index answers.
    (tmp_path / "pip_audit" / "__main__.py").write_text(
        f"import sys\nassert '--require-hashes' in sys.argv\nprint({answer!r})\nsys.exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "requirements" / "audit.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (status, said), done.stderr
    assert ("nothing was learned" in done.stderr) == (status == 1)
