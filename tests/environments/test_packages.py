"""One line each of the real packages trains, each in a Python of its own: `make test-environments`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine
from synthetic.until import poll
from synthetic.worlds.environment_run import EnvironmentRun, played

from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.environments.rows import environment_rows
from rftd.workers.workflows.environments.workflow import EnvironmentWorkflow
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

HOME = Path(__file__).parents[2] / "build" / "environments"
HERE = Path(__file__).parent
GYMS = HOME / "environments" / "bin" / "python"
VERIFIERS = HOME / "environments-verifiers" / "bin" / "python"
OPENENV = HOME / "environments-openenv" / "bin" / "python"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not (HOME / ".ready").exists(), reason="`make test-environments` installs the packages"),
]
PACKAGES = HERE / "packages"
"""Tasks of verifiers and OpenEnv, written for these packages."""
LINES = {
    "reasoning_gym": (f"reasoning_gym://leg_counting?size=20&python={GYMS}", {"score", "tagged"}),
    "gymnasium": (f"gymnasium://Blackjack-v1?size=20&python={GYMS}", {"return", "illegal_actions"}),
    "textworld": (f"textworld://treasure_hunter?level=1&size=4&python={GYMS}", {"points", "won", "moves"}),
    "verifiers": (f"verifiers://sums-of-digits?python={VERIFIERS}", {"right", "answer_length"}),
    "openenv": (f"openenv://digit_game:DigitGame?action=digit_game:Guess&python={OPENENV}", {"return"}),
}


@pytest.mark.parametrize("kind", LINES)
def test_a_taskset_of_one_line_trains_the_drawn_ids_if_its_explorer_is_killed(kind: str, tmp_path: Path) -> None:
    address, parts = LINES[kind]
    run = EnvironmentRun(tmp_path, address, steps=6)
    run.overrides += played(address, environ=f"{{PYTHONPATH: {PACKAGES}}}", readable=f"[{PACKAGES}]")[:1]
    with run.scene.host:
        name = run.submit()
        run.scene.until_step(name, 1)
        assert run.scene.kill("explorer", name)
        page = run.scene.until_ended(name, timeout_s=600.0)
        assert page.experiment.summary.state == "completed", page.experiment.summary.reason
        assert page.experiment.books.balance == 0
        assert run.scene.verified().clean
        assert run.check() == 6 * 4 * 4
        assert parts <= run.scene.events(ExperienceProduced)[0].metrics.keys()
        poll(lambda: not run.left(), told=run.left)


async def episode(address: str, row: int, rollout: int) -> RolloutResult:
    """One rollout by a server of its own, from the reading of the rows to the score."""
    arguments: dict[str, Any] = {
        "environment": address,
        "environ": {"PYTHONPATH": str(PACKAGES)},
        "readable": [str(PACKAGES)],
        "max_steps": 4,
    }
    rows = [row async for row in environment_rows(EnvironmentWorkflow(**arguments).program, 4)]
    taskset = TasksetSpec(
        name="played",
        path="rows.jsonl",
        workflow="environment_workflow",
        workflow_args=arguments,
        sampling=SamplingSpec(max_tokens=64),
    )
    engine = ScriptedEngine(["Is it 3? stick", "4", "5", "6"])
    runner = WorkflowRunner(taskset, model=SPEC, engine=engine, tokenizer=ByteTokenizer())
    return await runner.run(make_task(rows[row], spec=taskset, row=row), UUID(int=rollout << 100))


@pytest.mark.anyio
@pytest.mark.parametrize("kind", LINES)
async def test_a_rollout_made_again_by_a_new_server_is_equal(kind: str) -> None:
    address, _ = LINES[kind]
    for row in range(3):
        first, again = [await episode(address, row, rollout=row + 1) for _ in range(2)]
        assert first.tokens.tobytes() == again.tokens.tobytes()
        assert (first.reward, first.metrics) == (again.reward, again.metrics)
