"""A worker that is killed leaves an engine that holds a port: it has ended before the successor needs the port."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.third_party import install
from synthetic.until import poll

PARTS = '''
import os, subprocess, sys, threading, time
from pathlib import Path

STARTING = threading.Lock()
ENGINE = """
import os, socket, sys, time
listening = socket.socket()
try:
    listening.bind(("127.0.0.1", int(os.environ["ENGINE_PORT"])))
    listening.listen()
    said = "held"
except OSError:
    said = "refused"
with open(os.environ["ENGINE_FILE"], "a") as file:
    file.write(f"{os.getppid()} {os.getpid()} {said}\\\\n")
time.sleep(600 if said == "held" else 0)
"""

class Judge:
    """Asks an engine of its own, which holds a port."""

    def __init__(self):
        self._engine = None

    def score(self, response, truth, task):
        with STARTING:
            if self._engine is None:
                self._engine = subprocess.Popen([sys.executable, "-c", ENGINE], start_new_session=True)
            while not self._told():
                time.sleep(0.01)
        return float(len(response) % 2)

    def _told(self):
        lines = Path(os.environ["ENGINE_FILE"]).read_text().splitlines()
        return any(line.split()[0] == str(os.getpid()) for line in lines)
'''
LONG = (
    "stages=[]",
    "buffer.total_steps=80",
    "explorer.eval_interval=1000",
    # Else a run on a busy machine ends while the daemon that was killed starts again.
    "trainer.engine_args={step_s: 0.5}",
)


@pytest.mark.e2e
@pytest.mark.slow
def test_no_engine_outlives_its_worker_until_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, told, daemon_log = tmp_path / "parts", tmp_path / "engines", tmp_path / "daemon.log"
    parts.mkdir()
    told.touch()
    install(parts, "rftd_held_parts", PARTS, {"rftd.rewards": {"judged": "rftd_held_parts:Judge"}})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    monkeypatch.syspath_prepend(str(parts))
    path = os.pathsep.join(filter(None, (str(parts), os.environ.get("PYTHONPATH"))))
    environ = {"PYTHONPATH": path, "ENGINE_PORT": port, "ENGINE_FILE": str(told)}
    scene = Scene(tmp_path, environ={**environ, "RFTD_PASS_ENV": "PYTHONPATH ENGINE_*"})
    reward = "buffer.explorer_input.taskset.default_reward_fn_type=judged"

    def engines() -> list[tuple[int, psutil.Process | None, str]]:
        lines = [line.split() for line in told.read_text().splitlines()]
        return [(int(worker), _living(int(pid)), said) for worker, pid, said in lines]

    def tended_until(condition: Callable[[], object]) -> None:
        """A daemon that was killed is started again while this waits."""

        def holds() -> object:
            scene.host.tend()
            return condition()

        poll(holds, 90.0, told=lambda: daemon_log.read_text()[-3000:])

    def after(number: int) -> int:
        """The worker whose engine was started as that one: it alone lives, and holds the port."""
        tended_until(lambda: len(engines()) >= number)
        *before, (worker, engine, said) = engines()
        assert len(before) == number - 1
        assert all(each is None for _, each, _ in before)
        assert engine is not None
        assert said == "held"
        return worker

    def until_adopted(worker: int) -> None:
        adopted = re.compile(rf"worker\.adopted.*pid=.*\b{worker}\b")
        tended_until(lambda: adopted.search(re.sub(r"\x1b\[[0-9;]*m", "", daemon_log.read_text())))

    with scene.host:
        name = scene.submit(EXPERIMENT, *LONG, reward)
        os.kill(after(1), signal.SIGKILL)
        second = after(2)
        os.kill(scene.host.pid, signal.SIGKILL)  # and the worker while nobody looks after it
        os.kill(second, signal.SIGKILL)
        third = after(3)
        os.kill(scene.host.pid, signal.SIGKILL)
        until_adopted(third)
        os.kill(third, signal.SIGKILL)
        after(4)
        page = scene.until_ended(name)
    assert page.experiment.summary.state == "completed", page.experiment.summary.reason
    assert page.experiment.books.failed_rollouts == 0
    assert not any(engine for _, engine, _ in engines()), "nor does one outlive the experiment"
    assert scene.verified().clean


def _living(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None
