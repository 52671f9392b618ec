"""A policy of ours is its file and one line of the registry: file, tables, contract and runs follow from these.

The line is put into the registry's source before anything imports it, in processes of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.experiment_files import TEXT

ROOT = Path(__file__).parents[2]

POLICY = """
from typing import Annotated

from msgspec import Meta

from rftd.workers.control.policies.paced import Paced, PolicyArguments, PolicyPage, read_args


class PatientArgs(PolicyArguments, frozen=True, kw_only=True):
    spare_batches: Annotated[int, Meta(ge=0, le=9, description="batches ahead of the step that is made")] = 1


class Patient(Paced):
    arguments = PatientArgs
    page = PolicyPage(source="a test", admits="(v + 1 + `spare_batches`) B", purpose="patience")

    def __init__(self, spec):
        super().__init__(spec)
        self._spare = read_args(spec, PatientArgs).spare_batches

    def most_supply(self, view):
        return (view.steps_done + 1 + self._spare) * view.batch_size
"""

ONE_LINE_MORE = """
import importlib.util
import sys
from pathlib import Path

name = "rftd.workers.control.policies.registry"
spec = importlib.util.find_spec(name)
head = "BUILT_IN: Final = {\\n"
before, found, after = Path(spec.origin).read_text().partition(head)
assert found
sys.modules[name] = importlib.util.module_from_spec(spec)
code = before + head + '    "patient": "patient:Patient",\\n' + after
exec(compile(code, spec.origin, "exec"), vars(sys.modules[name]))
"""

EXPERIMENT = (
    TEXT
    + """\
synchronizer: {sync_style: fully_async}
policy:
  kind: patient
"""
)

LOADED = f"""
import json, sys
import one_line_more
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
sys.path.append({str(ROOT / "tests" / "golden")!r})
import make_policy_tables

def loaded(field):
    try:
        policy = load_text({EXPERIMENT!r} + field, "exp.yaml", environ={{}}).spec.stages[0].policy
        return [policy.kind, policy.args, policy.bounded]
    except ConfigErrors as error:
        return [[each.code, each.field, each.where, each.what, each.fix] for each in error.errors]

given = ["", "  spare_batches: 3", "  spare_batches: 12", "  spare_batchs: 3", "  max_concurrent: 3"]
tables = [make_policy_tables.kinds_table(), make_policy_tables.fields_table()]
print(json.dumps([[loaded(field) for field in given], *tables]))
"""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "patient.py").write_text(POLICY)
    (tmp_path / "one_line_more.py").write_text(ONE_LINE_MORE)
    return tmp_path


def ran(scratch: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(scratch), "RFTD_DISK_RESERVE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_experiment_file_and_the_tables_have_its_fields(scratch: Path) -> None:
    files: list[Any]
    files, kinds, fields = json.loads(ran(scratch, "-P", "-c", LOADED))
    usual, given, over, misspelt, of_another = files
    assert usual == ["patient", {}, False]
    assert given == ["patient", {"spare_batches": 3}, False]
    place = f"exp.yaml:{1 + EXPERIMENT.count(chr(10))}:"
    (wrong,) = over
    assert wrong[:2] == ["RFTD-CFG-005", "policy.spare_batches"]
    assert wrong[2].startswith(place)
    assert "less than or equal to 9, got the number 12" in wrong[3]
    (unknown,) = misspelt
    assert unknown[:2] == ["RFTD-CFG-004", "policy.spare_batchs"]
    assert unknown[2].startswith(place)
    assert unknown[4] == "did you mean 'spare_batches'?"
    assert of_another[0][:2] == ["RFTD-CFG-004", "policy.max_concurrent"]
    assert "| `patient` | a test | (v + 1 + `spare_batches`) B | no | `spare_batches` | patience |\n" in kinds
    assert "| `spare_batches` | 1 | of `patient`: batches ahead of the step that is made |\n" in fields


@pytest.mark.slow
def test_the_contract_and_a_whole_run_take_it_up(scratch: Path) -> None:
    suites = ("tests/contract/test_staleness_policies.py", "tests/integration/test_policies.py")
    ran_tests = ran(
        scratch, "-P", "-m", "pytest", "-q", "-p", "one_line_more", "-p", "no:cacheprovider", "-k", "patient", *suites
    )
    assert " passed" in ran_tests, ran_tests
