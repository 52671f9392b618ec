"""An experiment that serves on two engines: strangers are answered all the while as weights change in both."""

from __future__ import annotations

import math
import threading
from functools import partial
from itertools import product
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.scene import Scene
from synthetic.daemon.served_chat import ServedChat, free_port
from synthetic.docs.pages import block_named
from synthetic.models.vllm_engines import CACHE_BYTES
from synthetic.until import poll

from rftd.daemon.demo.demo import HEAD_SIZES
from rftd.streams.events.step import StepCompleted
from rftd.streams.events.weights import WeightsActivated
from rftd.workers.models.tiny_model import make_tiny_model

pytestmark = pytest.mark.e2e
STEPS = 3
LONGEST_S = 900.0


class Stranger(threading.Thread):
    """Asks one question after another until it is told to stop; what was no answer is kept."""

    def __init__(self, base_url: str) -> None:
        super().__init__(daemon=True)
        self._base_url = base_url
        self._enough = threading.Event()
        self.answers = 0
        self.failures: list[object] = []

    def run(self) -> None:
        body = {"messages": [{"role": "user", "content": "4+4="}]}
        while not self._enough.is_set():
            try:
                # Each question on a connection of its own, so that both servers of the port are asked.
                reply = httpx.post(f"{self._base_url}/v1/chat/completions", json=body, timeout=60.0, trust_env=False)
                self.answers += reply.status_code == 200
                self.failures += [] if reply.status_code == 200 else [reply.text]
            except httpx.HTTPError as error:
                self.failures.append(error)

    def stop(self) -> None:
        self._enough.set()
        self.join(60.0)


def test_two_engines_answer_while_their_weights_change_and_train_on_what_they_drew(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", seed=3, head_size=HEAD_SIZES["vllm"])  # the demo's
    scene = Scene(tmp_path)
    until = partial(poll, timeout_s=LONGEST_S, told=lambda: (tmp_path / "daemon.log").read_text()[-3000:])
    settings = (
        f"model.model_path={model}",
        "model.max_model_len=256",
        "model.max_response_tokens=32",
        f"explorer.proxy_port={free_port()}",
        "explorer.runner_per_model=8",
        "explorer.min_running_model_num=2",
        "explorer.rollout_model.engine_type=vllm",
        "explorer.rollout_model.engine_num=2",
        "explorer.rollout_model.dtype=float32",
        f"explorer.rollout_model.extra_engine_args.kv_cache_memory_bytes={CACHE_BYTES}",
        "trainer.trainer_type=torch",
        "trainer.max_idle_steps=0",
        "buffer.batch_size=2",
        f"buffer.total_steps={STEPS}",
    )
    with scene.host:
        name = scene.submit(block_named("served.yaml").text, *settings)
        chat = ServedChat(tmp_path / "checkpoints" / "assistants" / name, scene.host.tend)

        def loaded(version: int) -> bool:
            """True once both explorers have these weights, or newer ones."""
            return len({each.worker for each in scene.events(WeightsActivated) if each.version >= version}) == 2

        until(lambda: loaded(0))
        chat.until_up()
        stranger = Stranger(chat.base_url)
        stranger.start()
        for step in range(1, STEPS + 1):
            for task, run in product(range(2), range(2)):
                chat.judge(chat.ask(f"{step}+{task}="), float(run), task_id=f"{step}-{task}", run_id=run)
            if step == STEPS:  # the servers leave with the last step
                stranger.stop()
            assert chat.insist("POST", "/commit")["groups"] == 2
            until(lambda step=step: len(scene.events(StepCompleted)) >= step)
            if step < STEPS:
                until(lambda step=step: loaded(step))
        ended = scene.until_ended(name)
    assert ended.experiment.summary.state == "completed", ended.experiment.summary.reason
    assert stranger.answers
    assert not stranger.failures
    first, *_ = scene.events(StepCompleted)
    ratios = [first.metrics[f"mismatch/ratio/{end}"] for end in ("min", "max")]
    assert max(abs(math.log(ratio)) for ratio in ratios) <= 1e-4, "drawn by vLLM, and trained on the same weights"
    report = scene.verified()
    assert report.clean, report.findings
