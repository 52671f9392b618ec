"""A taskset of one line, `gymnasium://...`, trains: on torch, and exactly the drawn ids if an explorer is killed."""

from __future__ import annotations

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.daemon.torch_world import TORCH, torch_files
from synthetic.until import poll
from synthetic.worlds.environment_run import EnvironmentRun, played

from rftd.streams.events.experience import ExperienceProduced

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ICE = "gymnasium://FrozenLake-v1?size=12"


def test_a_run_with_a_killed_explorer_trains_the_drawn_ids_and_leaves_no_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # Not the test's own folder: sockets lie in it, and their paths have a limit.
    run = EnvironmentRun(tmp_path_factory.mktemp("ice"), ICE, steps=6)
    with run.scene.host:
        name = run.submit()
        run.scene.until_step(name, 2)
        assert run.scene.kill("explorer", name)
        page = run.scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary.reason
        assert any("the environment has 12 rows" in warning for warning in page.experiment.warnings)
        assert page.experiment.books.balance == 0
        assert run.scene.verified().clean
        assert run.check() == 6 * 4 * 4
        assert {"return", "illegal_actions"} <= run.scene.events(ExperienceProduced)[0].metrics.keys()
        poll(lambda: not run.left(), told=run.left)


def test_a_taskset_of_one_line_trains_on_torch(embedded_scene: Scene) -> None:
    scene = embedded_scene
    torch_files(scene.folder)
    name = scene.submit(EXPERIMENT, *TORCH, *SHORT, *played(ICE), "buffer.total_steps=3")
    page = scene.until_ended(name)
    assert (page.experiment.summary.state, page.experiment.summary.step) == ("completed", 3), page.experiment.summary
    turns = {event.turns for event in scene.events(ExperienceProduced)}
    assert max(turns) > 1, "an answer without an action is no step"
    assert scene.verified().clean
