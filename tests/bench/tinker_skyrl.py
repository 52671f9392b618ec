"""SFT, then GRPO, on `model.tinker` with the open server of skyrl: killed in the middle, and without it for a minute.

    make test-tinker        (or: tinker_skyrl.py --server PYTHON_OF_ITS_ENVIRONMENT, with tinker 0.25 here)

A tiny Qwen3 with random weights learns to repeat a digit: first from a pupil that is right half the time, then from its
own answers. Trainer, explorer and daemon are killed in turn, then the server's processes are stopped for a minute. It
fails unless the reward rises, every step was taken once, `verify` is clean, and `why` named the service for both roles.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import httpx
import psutil

sys.path.append(str(Path(__file__).parents[1]))

from figures import tell
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.served_chat import free_port
from synthetic.until import poll

from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.workers.models.tiny_model import make_tiny_model

SFT_STEPS = 30
GRPO_STEPS = 40
AWAY_S = 60.0
PATIENCE_S = 3600.0
"""The first call of each kind is compiled for, which takes minutes on a slow machine."""


@contextmanager
def serving(python: str, folder: Path, model: Path, port: int) -> Iterator[psutil.Process]:
    """The server, once it answers; its processes end with the block."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        # Compiling takes far longer than running anything of a tiny model; what was compiled is kept.
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false",
        "JAX_COMPILATION_CACHE_DIR": str(Path(python).parents[1] / "jax-cache"),
    }
    program = Path(__file__).parent / "tinker" / "server.py"
    command = [python, str(program), str(folder), str(model), str(port)]
    with (folder.parent / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        poll(lambda: answers(port), PATIENCE_S, told=lambda: f"the server does not answer: {process.poll()}")
        yield psutil.Process(process.pid)
    finally:
        for each in reversed(everyone(psutil.Process(process.pid))):
            each.kill()
        process.wait()


def answers(port: int) -> bool:
    """True if the server answers within a moment."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def everyone(process: psutil.Process) -> list[psutil.Process]:
    """A process and those that it started."""
    return [process, *process.children(recursive=True)]


def write_tasks(folder: Path) -> None:
    """Ten digits to be repeated, and a pupil's answers, of which half are right."""
    random = Random(7)
    rows = [{"question": f"{digit}=", "answer": str(digit)} for digit in range(10)]
    taught = [
        row | {"answer": str(random.randrange(10))} if number % 2 else row for number, row in enumerate(rows * 40)
    ]
    for name, some in (("train", rows * 4), ("eval", rows), ("warmup", taught)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))


def overrides(model: Path, port: int) -> tuple[str, ...]:
    """Everything at the server, and steps of 32 sequences, for which it compiles once."""
    return (
        f"model.model_path={model}",
        "model.max_model_len=24",
        "model.max_prompt_tokens=12",
        "model.max_response_tokens=3",
        f"model.tinker={{enable: true, base_model: '{model}', rank: 32, seed: 1, base_url: 'http://127.0.0.1:{port}'}}",
        "model.tinker.train_unembed=false",
        "algorithm.kl_loss_fn=none",
        "algorithm.repeat_times=8",
        "algorithm.optimizer={lr: 0.003}",
        "explorer.max_timeout=3600",
        "explorer.eval_interval=1000",
        "explorer.runner_per_model=32",
        "explorer.rollout_model={engine_num: 1}",
        "trainer={save_interval: 5, max_idle_steps: 0}",
        f"buffer.total_steps={GRPO_STEPS}",
    )


def run(scene: Scene, server: psutil.Process, model: Path, port: int) -> dict[str, object]:
    """The figures of one run. Raises AssertionError for a promise that was not kept."""
    text = EXPERIMENT.replace("path: ./train.jsonl\n        format", "path: ./warmup.jsonl\n        format")
    text = text.replace("algorithm: {algorithm_type: sft}", "algorithm: {algorithm_type: sft, optimizer: {lr: 0.01}}")
    text = text.replace(
        "train_batch_size: 4\n    total_steps: 5", f"train_batch_size: 32\n    total_steps: {SFT_STEPS}"
    )
    began_s = time.monotonic()
    name = scene.submit(text, *overrides(model, port))
    for step, role in ((8, "trainer"), (SFT_STEPS + 6, "explorer"), (SFT_STEPS + 9, "daemon")):
        scene.until_step(name, step, PATIENCE_S)
        scene.kill(role, name)
    scene.until_step(name, SFT_STEPS + 14, PATIENCE_S)
    stopped = everyone(server)
    for each in stopped:
        each.suspend()
    gone_s = time.monotonic()
    # Whoever begins anew asks for something: the newest state, and the newest weights.
    scene.kill("trainer", name)
    scene.kill("explorer", name)
    says = "the model's service: it does not answer"
    poll(lambda: scene.rftd("why", name).out.count(says) >= 2, AWAY_S * 5)
    named_s = time.monotonic() - gone_s
    time.sleep(max(0.0, AWAY_S - named_s))
    away_s = time.monotonic() - gone_s
    for each in stopped:
        each.resume()
    page = scene.until_ended(name, PATIENCE_S)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    scene.host.__exit__(None, None, None)
    report = scene.verified()
    assert report.clean, report.findings
    (one,) = report.experiments
    assert one.steps == SFT_STEPS + GRPO_STEPS, one
    newest = {each.step: each for each in scene.events(StepCompleted)}
    rewards = [newest[step].metrics["critic/rewards/mean"] for step in range(SFT_STEPS + 1, SFT_STEPS + GRPO_STEPS + 1)]
    first = sum(rewards[:5]) / 5
    last = sum(rewards[-5:]) / 5
    assert last > first + 0.2, rewards
    return {
        "steps": one.steps,
        "executions": one.executions,
        "generations": len(scene.events(GenerationStarted)),
        "reward_first_5": round(first, 3),
        "reward_last_5": round(last, 3),
        "away_s": round(away_s, 1),
        "both_waits_named_after_s": round(named_s, 1),
        "wall_s": round(time.monotonic() - began_s, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the interpreter of the server's environment")
    given = parser.parse_args()
    # SIGTERM ends the server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(mkdtemp(prefix="tinker-skyrl-"))
    base = make_tiny_model(work / "model", seed=1, head_size=16)
    address = free_port()
    with serving(given.server, work / "server", base, address) as started:
        made = Scene(work, environ={"TINKER_API_KEY": "tml-open-server"})
        write_tasks(work)
        with made.host:
            found = run(made, started, base, address)
    tell(found)
