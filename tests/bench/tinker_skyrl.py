"""SFT, then GRPO, on `model.tinker` with the open server of skyrl: killed in the middle, and without it for a minute.

    make test-tinker        (or: tinker_skyrl.py --server PYTHON_OF_ITS_ENVIRONMENT, with tinker 0.25 here)
    tinker_skyrl.py --server PYTHON --record FILE

A tiny Qwen3 with random weights learns to repeat a digit: first from a pupil that is right half the time, then from its
own answers. Trainer, explorer and daemon are killed in turn, then the server's processes are stopped for a minute. It
fails unless the reward rises, every step was taken once, by our books and by the count of the server's optimizer,
`verify` is clean, and `why` named the service for both roles. Every sequence and batch has one shape, for each other
one would be compiled for, and what was compiled is kept beside the server's environment.

The run is in step (`sync_style: fixed`), and GRPO has a loss of the service's own: this server trains and generates
with one copy of an adapter, so that to generate with older weights puts them back, and it divides the cross-entropy of
a sequence by the sum of its weights, which is no sum where some are negative.

With --record nothing is trained: a client says everything that the product may say, and FILE becomes the recording that
the fake of the protocol is held to (tests/golden/tinker).
"""

from __future__ import annotations

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

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))
sys.path.insert(0, str(Path(__file__).parent / "tinker"))

import numpy as np
from converse import KEY, converse
from figures import read_options, tell
from recorder import compact
from safetensors.numpy import load_file, save_file
from synthetic.daemon.scene import ENDED, EXPERIMENT, Scene
from synthetic.daemon.served_chat import free_port
from synthetic.until import poll

from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.ops.redaction import Secret
from rftd.storage.files.service_state import ServiceState
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.workers.engines.tinker.access import Access
from rftd.workers.engines.tinker.sdk import connect
from rftd.workers.models.tiny_model import make_tiny_model

SFT_STEPS = 50
GRPO_STEPS = 40
AWAY_S = 60.0
PATIENCE_S = 900.0
"""How long nothing may happen: a first call is compiled for, which takes a minute or two on a machine with others."""
TELL_S = 15.0
BEGAN_S = time.monotonic()


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.monotonic() - BEGAN_S:6.1f} s  {text}", flush=True)


@contextmanager
def serving(python: str, folder: Path, model: Path, port: int, *options: str) -> Iterator[psutil.Process]:
    """The server, once it answers; its processes end with the block."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        # Compiling takes far longer than running anything of a tiny model; what was compiled is kept.
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false",
        "JAX_COMPILATION_CACHE_DIR": str(Path(python).parents[1] / "jax-cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    program = Path(__file__).parent / "tinker" / "server.py"
    command = [python, str(program), str(folder), str(model), str(port), *options]
    said = folder.parent / "server.log"
    with said.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        say(f"the server begins; its log is {said}")
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


def make_model(folder: Path) -> Path:
    """A tiny Qwen3 whose embeddings are wide enough that an adapter alone can make a token likely."""
    made = make_tiny_model(folder, seed=1, head_size=16)
    file = made / "model.safetensors"
    tensors = load_file(file)
    embeddings = "model.embed_tokens.weight"
    tensors[embeddings] = (10 * tensors[embeddings]).astype(np.float32)
    save_file(tensors, file, metadata={"format": "pt"})
    return made


def write_tasks(folder: Path) -> None:
    """Ten digits to be repeated, and a pupil's answers, of which half are right."""
    random = Random(7)
    rows = [{"question": f"={digit}", "answer": str(digit)} for digit in range(10)]
    taught = [
        row | {"answer": str(random.randrange(10))} if number % 2 else row for number, row in enumerate(rows * 40)
    ]
    random.shuffle(taught)
    for name, some in (("train", rows * 4), ("eval", rows), ("warmup", taught)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))


def overrides(model: Path, port: int) -> tuple[str, ...]:
    """Everything at the server, in step, and 32 sequences a step."""
    return (
        f"model.model_path={model}",
        "model.max_model_len=24",
        "model.max_prompt_tokens=12",
        "model.max_response_tokens=3",
        f"model.tinker={{enable: true, base_model: '{model}', rank: 32, seed: 1, base_url: 'http://127.0.0.1:{port}'}}",
        "model.tinker.train_unembed=false",
        "algorithm.kl_loss_fn=none",
        "algorithm.policy_loss_fn_args={clip_ratio_c: 1.0e6}",
        "algorithm.repeat_times=8",
        "algorithm.optimizer={lr: 0.003}",
        "explorer.max_timeout=900",
        "explorer.eval_interval=1000",
        "explorer.runner_per_model=32",
        "explorer.rollout_model={engine_num: 1}",
        "trainer={save_interval: 5, max_idle_steps: 0}",
        "synchronizer={sync_method: checkpoint, sync_style: fixed, sync_interval: 1, sync_offset: 0}",
        f"buffer.total_steps={GRPO_STEPS}",
    )


def reach(scene: Scene, name: str, step: int | None) -> ExperimentPage:
    """The experiment's page once it has taken so many steps; None: once it has ended. Raises AssertionError.

    It may take as long as it likes, as long as there is a step now and then.
    """
    last = -1
    moved_s = told_s = time.monotonic()
    while True:
        page = scene.page(name)
        now_s = time.monotonic()
        if page is not None:
            summary = page.experiment.summary
            if summary.step != last:
                last = summary.step
                moved_s = now_s
            if now_s - told_s >= TELL_S:
                told_s = now_s
                say(f"{summary.state}, step {summary.step} of {SFT_STEPS + GRPO_STEPS}")
            if summary.state in ENDED or (step is not None and summary.step >= step):
                return page
        assert now_s - moved_s < PATIENCE_S, f"no step after {last}: {scene.rftd('why', name).out}"
        time.sleep(0.1)


def leave_alone(scene: Scene, server: psutil.Process, name: str) -> tuple[float, float]:
    """Stops the server for a minute; how long it was away, and after how long both roles' waits were named."""
    stopped = everyone(server)
    for each in stopped:
        each.suspend()
    gone_s = time.monotonic()
    say("the server is stopped")
    # Whoever begins anew asks for something: the newest state, and the newest weights.
    scene.kill("trainer", name)
    scene.kill("explorer", name)
    says = "the model's service, which does not answer"
    poll(
        lambda: scene.rftd("why", name).out.count(says) >= 2,
        AWAY_S * 5,
        told=lambda: scene.rftd("why", name).out,
    )
    named_s = time.monotonic() - gone_s
    say(f"`why` names the service for both roles, {named_s:.0f} s later")
    time.sleep(max(0.0, AWAY_S - named_s))
    away_s = time.monotonic() - gone_s
    for each in stopped:
        each.resume()
    say("the server goes on")
    return away_s, named_s


def steps_of(python: str, folder: Path, checkpoint: CheckpointCommitted) -> int:
    """The steps that the server's optimizer has taken in a checkpoint, by its own count."""
    run, _, name = ServiceState.read(Path(checkpoint.path)).path.removeprefix("tinker://").split("/")
    state = folder / "checkpoints" / run / f"{name}.tar.gz"
    program = Path(__file__).parent / "tinker" / "steps_of.py"
    done = subprocess.run(
        [python, str(program), str(state)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return int(done.stdout)


def run(scene: Scene, server: psutil.Process, python: str, model: Path, port: int) -> dict[str, object]:
    """The figures of one run. Raises AssertionError for a promise that was not kept."""
    text = EXPERIMENT.replace("path: ./train.jsonl\n        format", "path: ./warmup.jsonl\n        format")
    text = text.replace("algorithm: {algorithm_type: sft}", "algorithm: {algorithm_type: sft, optimizer: {lr: 0.005}}")
    text = text.replace(
        "train_batch_size: 4\n    total_steps: 5", f"train_batch_size: 32\n    total_steps: {SFT_STEPS}"
    )
    name = scene.submit(text, *overrides(model, port))
    for step, role in ((8, "trainer"), (SFT_STEPS + 6, "explorer"), (SFT_STEPS + 9, "daemon")):
        reach(scene, name, step)
        assert scene.kill(role, name), f"there is no {role} to be killed"
        say(f"the {role} is killed after step {step}")
    reach(scene, name, SFT_STEPS + 14)
    away_s, named_s = leave_alone(scene, server, name)
    page = reach(scene, name, None)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    scene.host.__exit__(None, None, None)
    report = scene.verified()
    assert report.clean, report.findings
    (one,) = report.experiments
    assert one.steps == SFT_STEPS + GRPO_STEPS, one
    checkpoints = {each.step: each for each in sorted(scene.events(CheckpointCommitted), key=lambda e: e.generation)}
    counts = [steps_of(python, scene.folder / "server", checkpoints[at]) for at in (SFT_STEPS, one.steps)]
    assert counts == [SFT_STEPS, GRPO_STEPS], f"the server's optimizers took {counts} steps"
    newest = {each.step: each for each in scene.events(StepCompleted)}
    rewards = [newest[step].metrics["critic/rewards/mean"] for step in range(SFT_STEPS + 1, one.steps + 1)]
    first = sum(rewards[:5]) / 5
    last = sum(rewards[-5:]) / 5
    assert last > first + 0.2, rewards
    return {
        "steps": one.steps,
        "executions": one.executions,
        "optimizer_steps": counts,
        "generations": len(scene.events(GenerationStarted)),
        "reward_first_5": round(first, 3),
        "reward_last_5": round(last, 3),
        "away_s": round(away_s, 1),
        "both_waits_named_after_s": round(named_s, 1),
        "wall_s": round(time.monotonic() - BEGAN_S, 1),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def main(python: str, recording: Path | None) -> None:
    """Trains, or makes the recording."""
    work = Path(mkdtemp(prefix="tinker-skyrl-"))
    model = make_model(work / "model")
    port = free_port()
    if recording is not None:
        whole = work / "recording.jsonl"
        with serving(python, work / "server", model, port, "--record", str(whole)):
            url = f"http://127.0.0.1:{port}"
            converse(connect(Access(Secret(KEY), "TINKER_API_KEY", url)), url, str(model), say)
        compact(whole, recording, str(model))
        say(f"the recording is {recording}")
        return
    with serving(python, work / "server", model, port) as server:
        scene = Scene(work, environ={"TINKER_API_KEY": KEY})
        write_tasks(work)
        with scene.host:
            found = run(scene, server, python, model, port)
    tell(found)


if __name__ == "__main__":
    given = read_options(
        __doc__,
        server={"required": True, "help": "the interpreter of the server's environment"},
        record=(Path, "makes the recording, and trains nothing"),
    )
    # SIGTERM ends the server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(given.server, given.record)
