"""Optional packages: the table agrees with the project, and whatever needs them says how to install them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rftd.ops import extras
from rftd.ops.errors import NotInstalledError
from rftd.ops.extras import PACKAGES, PLOT, TORCH, check_extra

ROOT = Path(__file__).parents[3]
PULLED = {"huggingface-hub"}
"""What `rftd submit --pull` alone imports, and looks for itself: its module has another name."""
LIGHT = """
import pkgutil, sys
import rftd.daemon.http.api, rftd.daemon.http.client, rftd.daemon.cli.verbs, rftd.daemon.http.views
import rftd.daemon.cli.cli, rftd.daemon.serve.service, rftd.daemon.serve.external_worker
import rftd.workers.process, rftd.workers.api
import rftd.daemon.run.supervisor.supervisor, rftd.daemon.run.supervisor.preflight
import rftd.workers.generation.engine_registry, rftd.workers.learning.engine_registry
for package in (rftd.daemon.http.api, rftd.daemon.http.client, rftd.daemon.cli.verbs, rftd.daemon.http.views):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        __import__(module.name)
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_the_table_of_extras_is_that_of_the_project_and_the_base_has_none_of_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = project["optional-dependencies"]
    named = {extra: {Requirement(row).name for row in rows[extra]} - PULLED for extra in PACKAGES}
    assert named == {extra: set(names) for extra, names in PACKAGES.items()}
    heavy = {name for names in PACKAGES.values() for name in names}
    assert not heavy & {Requirement(row).name for row in project["dependencies"]}
    pinned = [line.partition("==")[0] for line in (ROOT / "requirements" / "base.txt").read_text().splitlines()]
    assert not heavy & set(pinned)


def test_client_command_line_api_daemon_and_workers_import_no_package_of_an_extra() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", LIGHT], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert not {name for names in PACKAGES.values() for name in names} & set(done.stdout.split())


@pytest.mark.parametrize(("extra", "named"), [(TORCH, "torch, transformers"), (PLOT, "matplotlib")])
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, extra: str, named: str
) -> None:
    check_extra(extra, "this test")
    missing = named.split(", ")
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in missing else object())
    with pytest.raises(NotInstalledError, match=f"this test needs {named}, which") as raised:
        check_extra(extra, "this test")
    assert raised.value.fix == f"pip install 'rftd[{extra}]'"
