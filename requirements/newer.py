"""Tells whether later releases of the heavy engines would resolve together with rftd's other dependencies.

    make newer

verl bounds transformers and vLLM pins torch, so one of them alone can never move: they are resolved together, with
rftd's bounds on torch, transformers and on the engines themselves left away. A schedule runs the program itself, for
`make` has a status of its own. It exits with

    0    no later engine fits: nothing is to be done
    10   later ones fit together: move the bounds in pyproject.toml, then `make lock`; or the tables of vLLM's arguments
         and models, or of veRL's keys, are of another release than the lock: `tests/golden/make_vllm_tables.py` and
         `make_verl_tables.py`
    1    nothing was learned: nothing resolves, or no index answers
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ENGINES: Final = ("vllm", "verl", "ray", "tinker")
LONGEST_S: Final = 600.0
FOUND: Final = 10
"""The exit status when later engines fit: no error, and nobody else's status."""
FREED: Final = ("torch", "transformers", "numpy", "tensordict", "peft")
"""What moves with them."""

root = Path(__file__).resolve().parent.parent
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
of_extras = {name: rows for name, rows in project["optional-dependencies"].items() if name != "all"}
# An extra may ask for another one of ours, whose rows are here as well.
of_others = [row for rows in of_extras.values() for row in rows if not row.startswith("rftd[")]
wanted = [*project["dependencies"], *of_others]


def name_of(requirement: str) -> str:
    """The name of the package that a requirement is about."""
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return found[0].lower()


def freed(requirement: str) -> str:
    """The requirement without its upper bound, if it is one that may move."""
    if name_of(requirement) not in {*ENGINES, *FREED}:
        return requirement
    return re.sub(r",<[^,;!]*", "", requirement)


def resolved(requirements: list[str]) -> dict[str, str]:
    """The versions by name that satisfy all requirements. Ends the program with the resolver's words if none do."""
    options = ["-q", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate"]
    command = [sys.executable, "-m", "uv", "pip", "compile", *options, "-"]
    done = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, timeout=LONGEST_S)
    if done.returncode:
        sys.exit(f"nothing resolves:\n{done.stderr}")
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", done.stdout, re.MULTILINE))


ours = resolved(wanted)
latest = resolved([freed(each) for each in wanted])
moved = [name for name in ENGINES if ours[name] != latest[name]]
for name in (*ENGINES, *FREED):
    later = "" if ours[name] == latest[name] else latest[name]
    sys.stdout.write(f"{name:14}{ours[name]:12}{later}\n")
sys.stdout.write(
    f"later ones fit together: {', '.join(moved)}\n" if moved else "no later engine fits beside the others\n"
)
lock = (root / "requirements" / "engines-cuda.txt").read_text()
stale = False
for package, path, key in (
    ("vllm", "workers/engines/vllm/tables.json", "version"),
    ("verl", "daemon/config/verl/tables.json", "release"),
):
    tables = json.loads((root / path).read_bytes())[key]
    [locked] = re.findall(rf"^{package}==([^\s;]+)", lock, re.MULTILINE)
    if not locked.startswith(f"{tables}."):
        stale = True
        sys.stdout.write(
            f"{package} {locked} is locked, {path} is of {tables}: tests/golden/make_{package}_tables.py\n"
        )
sys.exit(FOUND if moved or stale else 0)
