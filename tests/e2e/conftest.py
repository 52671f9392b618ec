"""Third parties' parts that misbehave, and a daemon that knows them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from synthetic.daemon.scene import Scene
from synthetic.daemon.third_party import install

PARTS = '''
import asyncio
import builtins
import os
import signal
from rftd.workers.workflows.simple import SimpleWorkflow

class Raises:
    def score(self, response, truth, task):
        raise ZeroDivisionError("no sandbox")

class Leaves:
    """Leaves on one row, or on each of them."""
    def __init__(self, way, everywhere=False):
        self.way, self.everywhere = way, everywhere
    def leave(self):
        if self.way == "_exit":
            os._exit(42)
        if self.way == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        raise getattr(asyncio, self.way, None) or getattr(builtins, self.way)
    def score(self, response, truth, task):
        if self.everywhere or str(task.prompt).strip() == "0+0=":
            self.leave()
        return float(len(response) % 2)

class LeavesBeside(Leaves):
    """Leaves in a task that the reward starts itself."""
    async def score(self, response, truth, task):
        async def tool():
            return Leaves.score(self, response, truth, task)
        return await asyncio.wait_for(tool(), 30)

class Waits:
    default_reward = "exact_match_reward"
    async def run(self, task, model, reward):
        await asyncio.Event().wait()

class Loops(SimpleWorkflow):
    """Blocks its process on one row."""
    async def run(self, task, model, reward):
        while str(task.prompt).strip() == "0+0=":
            pass
        return await super().run(task, model, reward)

class Deadly(SimpleWorkflow):
    """Ends its process on one row."""
    async def run(self, task, model, reward):
        if str(task.prompt).strip() == "0+0=":
            os._exit(42)
        return await super().run(task, model, reward)
'''
POINTS = {
    "rftd.workflows": {name: f"rftd_bad_parts:{name.title()}" for name in ("waits", "loops", "deadly")},
    "rftd.rewards": {
        "raises": "rftd_bad_parts:Raises",
        "leaves": "rftd_bad_parts:Leaves",
        "leaves_beside": "rftd_bad_parts:LeavesBeside",
    },
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One daemon for a whole file: what is bad for one experiment must not be felt by the next. Lost after 3 s."""
    folder = tmp_path_factory.mktemp("shared")
    install(folder, "rftd_bad_parts", PARTS, POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setenv("RFTD_PASS_ENV", "PYTHONPATH")
        patch.syspath_prepend(str(folder))
        scene = Scene(folder, "--worker-lost-after", "3s")
        with scene.host:
            yield scene
            assert scene.host.restarts == 0
            report = scene.verified()
            assert report.clean, report.findings
