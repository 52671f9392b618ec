"""The real daemon, its worker processes and the real `tinker` package, against a service over HTTP on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.models.tinker_over_http import Server, served
from synthetic.models.tinker_rehearsal import KEY
from synthetic.until import poll

from rftd.storage.files.service_state import ServiceState
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.workers.models.tiny_model import make_tiny_model

STEPS = 20
"""Five of SFT, fifteen of GRPO."""


@pytest.fixture
def server() -> Iterator[Server]:
    with served() as made:
        yield made


@pytest.mark.e2e
def test_killed_and_left_alone_no_step_is_lost_or_doubled(tmp_path: Path, server: Server) -> None:
    make_tiny_model(tmp_path / "model", seed=3, hidden_size=32, heads=2)
    scene = Scene(tmp_path, environ={"TINKER_API_KEY": KEY})
    overrides = (
        "model.model_path=./model",
        "model.max_model_len=32",
        "model.max_prompt_tokens=16",
        "model.max_response_tokens=8",
        f"model.tinker={{enable: true, base_model: org/tiny, base_url: '{server.url}'}}",
        "algorithm.kl_loss_fn=none",
        "explorer.max_timeout=600",
        "explorer.eval_interval=1000",
        "explorer.rollout_model={engine_num: 1}",
        "trainer={save_interval: 2, max_idle_steps: 0}",
        f"buffer.total_steps={STEPS - 5}",
    )
    with scene.host:
        name = scene.submit(EXPERIMENT, *overrides)
        for step, role in ((3, "trainer"), (8, "explorer"), (10, "daemon")):
            scene.until_step(name, step)
            scene.kill(role, name)
        scene.until_step(name, 12)
        server.service.away = True
        # Whoever begins anew asks for something: the newest state, the newest weights.
        scene.kill("trainer", name)
        scene.kill("explorer", name)
        waits: dict[str, str] = {}

        def both_wait() -> bool:
            said = scene.rftd("why", name).out
            waits["said"] = said
            return said.count("the model's service, which does not answer") >= 2

        poll(both_wait, told=lambda: waits)
        server.service.away = False
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary
    report = scene.verified()
    assert report.clean, report.findings
    last = max(scene.events(CheckpointCommitted), key=lambda each: (each.step, each.generation))
    made_of = server.service.saved[ServiceState.read(Path(last.path)).path][0].made_of
    assert last.step == STEPS
    assert len(made_of) == len(set(made_of)) == STEPS
    for path in tmp_path.rglob("*.log"):
        assert KEY not in path.read_text(), path
