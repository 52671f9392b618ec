"""One line each of the real packages trains, each in a Python of its own: `make test-environments`."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.until import poll
from synthetic.worlds.environment_run import EnvironmentRun, played

from rftd.streams.events.experience import ExperienceProduced

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
LINES = {
    "reasoning_gym": (f"reasoning_gym://leg_counting?size=20&python={GYMS}", {"score", "tagged"}),
    "gymnasium": (f"gymnasium://Blackjack-v1?size=20&python={GYMS}", {"return", "illegal_actions"}),
    "verifiers": (f"verifiers://sums-of-digits?python={VERIFIERS}", {"right", "answer_length"}),
    "openenv": (f"openenv://digit_game:DigitGame?action=digit_game:Guess&python={OPENENV}", {"return"}),
}


@pytest.mark.parametrize("kind", LINES)
def test_a_taskset_of_one_line_trains_the_ids_that_were_drawn(kind: str, tmp_path: Path) -> None:
    address, parts = LINES[kind]
    run = EnvironmentRun(tmp_path, address, steps=3)
    # The tasks of verifiers and OpenEnv, written for the packages beside this file.
    packages = HERE / "packages"
    run.overrides += played(address, environ=f"{{PYTHONPATH: {packages}}}", readable=f"[{packages}]")[:1]
    with run.scene.host:
        name = run.submit()
        page = run.scene.until_ended(name, timeout_s=600.0)
        assert page.experiment.summary.state == "completed", page.experiment.summary.reason
        assert run.scene.verified().clean
        assert run.check() == 3 * 4 * 4
        assert parts <= run.scene.events(ExperienceProduced)[0].metrics.keys()
        poll(lambda: not run.left(), told=run.left)
