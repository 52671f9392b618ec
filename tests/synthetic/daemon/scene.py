"""A real daemon with real worker processes and fake engines, to be fed, starved and killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import httpx
import psutil
from synthetic.daemon.command_line import Said
from synthetic.until import PATIENCE_S

from rftd.daemon.config.loading import load_text
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.http.views import access, commands, experiments
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.log_source import log_to_read
from rftd.ops.clock import SystemClock
from rftd.ops.errors import RftdError, UnreachableError
from rftd.ops.ids import SystemIds
from rftd.storage.queries.experiments import ExperimentSummary
from rftd.streams.log.backend import LogUrl
from rftd.streams.log.deadletters import understood
from rftd.streams.log.envelope import Record
from rftd.streams.verify.checker import verify
from rftd.streams.verify.report import VerifyReport

E = TypeVar("E")

ENDED = {"completed", "failed", "cancelled", "rejected"}

EXPERIMENT = """
project: crash
name: sums
checkpoint_root_dir: ./checkpoints
algorithm:
  algorithm_type: grpo
  repeat_times: 4
  sample_strategy: staleness_control
  sample_strategy_args: {max_staleness: 2}
model: {model_path: fake, max_model_len: 64, max_prompt_tokens: 32}
buffer:
  batch_size: 4
  total_steps: 60
  explorer_input:
    taskset:
      name: sums
      path: ./train.jsonl
      format: {prompt_type: raw, prompt_key: question, response_key: answer}
      default_workflow_type: simple_workflow
      default_reward_fn_type: exact_match_reward
    eval_tasksets:
    - name: held
      path: ./eval.jsonl
      format: {prompt_type: raw, prompt_key: question, response_key: answer}
      rollout_args: {temperature: 0.0}
      default_workflow_type: simple_workflow
      default_reward_fn_type: exact_match_reward
explorer:
  eval_interval: 20
  runner_per_model: 16
  max_timeout: 20
  rollout_model: {engine_type: fake, engine_num: 1, extra_engine_args: {latency_s: 0.05}}
trainer: {trainer_type: fake, save_interval: 7, max_idle_steps: 0, engine_args: {step_s: 0.05}}
synchronizer: {sync_method: checkpoint, sync_style: fully_async, sync_interval: 1}
stages:
- stage_name: warmup
  mode: train
  algorithm: {algorithm_type: sft}
  buffer:
    train_batch_size: 4
    total_steps: 5
    trainer_input:
      experience_buffer:
        name: warmup
        path: ./train.jsonl
        format: {prompt_type: raw, prompt_key: question, response_key: answer}
- stage_name: rft
"""


SHORT = ("stages=[]", "buffer.total_steps=6", "explorer.eval_interval=1000")
"""Overrides for a run of about a second."""
QUEUE = (
    "stages=[]",
    "buffer.total_steps=1000",
    "explorer.eval_interval=100000",
    "trainer.save_interval=50",
    "buffer.explorer_input.taskset.storage_type=queue",
    "buffer.explorer_input.taskset.path=null",
)
"""Overrides for a run whose tasks are added while it runs."""


class Scene:
    """One daemon and the experiments given to it."""

    def __init__(self, folder: Path, *options: str, environ: Mapping[str, str] | None = None) -> None:
        """`options` go to `rftd serve`; `environ` may name a Kafka (RFTD_KAFKA) and a Postgres (RFTD_POSTGRES)."""
        self.folder = folder
        self.environ = dict(environ or {})
        self.data = DataFolder(folder / "data")
        self.host = DaemonHost(folder / "data", folder / "daemon.log", options, self.environ)
        for name, rows in (("train", 40), ("eval", 12)):
            lines = (json.dumps({"question": f"{a}+{a % 10}=", "answer": str(a + a % 10)}) for a in range(rows))
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def submit(self, text: str = EXPERIMENT, *overrides: str, cwd: Path | None = None, request_id: str = "") -> str:
        """Of two daemons that are given one request id, each makes an experiment of the same id, and so of seeds."""
        where = cwd or self.folder
        submission = load_text(text, "test.yaml", overrides=overrides, environ=dict(os.environ), cwd=where)
        with self.client() as client:
            request = request_id or str(SystemIds(SystemClock()).new())
            return client.send(
                commands.submit, commands.Submit(config=submission.config), request_id=request
            ).value.name

    def submit_through(self, text: str = EXPERIMENT, *overrides: str, timeout_s: float = PATIENCE_S) -> str:
        """The experiment is submitted with one request id until a daemon that may die meanwhile has answered."""
        submission = load_text(text, "test.yaml", overrides=overrides, environ=dict(os.environ), cwd=self.folder)
        request, deadline_s = str(SystemIds(SystemClock()).new()), time.monotonic() + timeout_s
        while True:
            try:
                self.host.tend()
                with self.client() as client:
                    return client.send(
                        commands.submit, commands.Submit(config=submission.config), request_id=request
                    ).value.name
            except UnreachableError:
                if time.monotonic() > deadline_s:
                    raise

    def rftd(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Said:
        """One command line, in a process of its own, in the scene's folder and against its daemon."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "rftd.daemon", *arguments],
            cwd=self.folder,
            env=self.environment | dict(environ or {}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def spawn(
        self, name: str, *arguments: str, environ: Mapping[str, str] | None = None, within: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """A command line, `within` another, that runs beside the test, which ends it; its output goes to NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [*within, sys.executable, "-P", "-m", "rftd.daemon", *arguments],
                cwd=self.folder,
                env=self.environment | dict(environ or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the processes that this scene starts."""
        return {**os.environ, "RFTD_DATA": str(self.data.root), "COLUMNS": "200", **self.environ}

    @property
    def log_at(self) -> LogUrl | None:
        """The log's address; None if it lies in the data folder."""
        kafka = self.environ.get("RFTD_KAFKA")
        return None if kafka is None else LogUrl("kafka", kafka)

    def write(self, text: str = EXPERIMENT, name: str = "exp.yaml") -> Path:
        """An experiment file in the scene's folder."""
        path = self.folder / name
        path.write_text(text)
        return path

    def get(self, path: str, **headers: str) -> httpx.Response:
        """The daemon's answer to a GET of its owner. Raises OSError, httpx.HTTPError and NoDaemonError."""
        url = f"{self.host.url}{path}"
        return httpx.get(url, headers={**self.host.headers, **headers}, timeout=30.0, trust_env=False)

    def client(self) -> Client:
        return Client(replace(self.host.settings, timeout_s=60.0), {})

    def link(self) -> str:
        """A link that signs a browser in as owner, once."""
        with self.client() as client:
            return f"{client.url}{client.send(access.new_link, access.NewLink()).value.path}"

    def page(self, name: str) -> ExperimentPage | None:
        """The experiment's page; None while the daemon does not answer."""
        try:
            self.host.tend()
            with self.client() as client:
                return client.ask(experiments.one, name=name).value
        except (RftdError, OSError):
            return None

    def until_ended(self, name: str, timeout_s: float = PATIENCE_S, *, but: str = "") -> ExperimentPage:
        """The page of an ended experiment, `but` not of this id: tables may lag behind a second one of that name."""
        return self._until(name, lambda summary: summary.state in ENDED and summary.id != but, "end", timeout_s)

    def until_state(self, name: str, state: str, timeout_s: float = PATIENCE_S) -> ExperimentPage:
        """The experiment's page once it is in that state."""
        return self._until(name, lambda summary: summary.state == state, f"become {state}", timeout_s)

    def until_step(self, name: str, step: int, timeout_s: float = PATIENCE_S) -> ExperimentPage:
        """The experiment's page once it has completed so many steps."""
        return self._until(name, lambda summary: summary.step >= step, f"reach step {step}", timeout_s)

    def _until(
        self, name: str, is_so: Callable[[ExperimentSummary], bool], what: str, timeout_s: float
    ) -> ExperimentPage:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            page = self.page(name)
            if page is not None and is_so(page.experiment.summary):
                return page
            time.sleep(0.05)
        raise AssertionError(f"{name} did not {what}: {page}\n{(self.folder / 'daemon.log').read_text()[-3000:]}")

    def kill(self, role: str, name: str) -> bool:
        """SIGKILLs the process of a role; False if none is there now."""
        if role == "daemon":
            os.kill(self.host.pid, signal.SIGKILL)
            return True
        page = self.page(name)
        for worker in page.workers if page else ():
            if worker.role == role and worker.state == "live" and psutil.pid_exists(worker.pid):
                os.kill(worker.pid, signal.SIGKILL)
                return True
        return False

    def events(self, kind: type[E]) -> list[E]:
        """Every event of a kind in the log, partition by partition."""
        return [event for _, event in self.events_by_experiment(kind)]

    def events_by_experiment(self, kind: type[E]) -> list[tuple[UUID | None, E]]:
        """Every event of a kind in the log, each with its experiment."""

        async def read() -> list[tuple[UUID | None, E]]:
            events: list[tuple[UUID | None, E]] = []
            async for record in self._records():
                decoded = understood(record)
                if decoded is not None and isinstance(decoded.event, kind):
                    events.append((decoded.head.experiment, decoded.event))
            return events

        return asyncio.run(read())

    def records(self) -> list[Record]:
        """Every record of the log, its value as it was before it was compressed."""

        async def read() -> list[Record]:
            return [record async for record in self._records()]

        return asyncio.run(read())

    async def _records(self) -> AsyncIterator[Record]:
        clock = SystemClock()
        async with log_to_read(self.data, self.log_at, clock=clock, ids=SystemIds(clock)) as log:
            for partition, head in sorted((await log.heads()).items()):
                offset = 0
                while offset < head.next_offset and (records := await log.read(partition, offset)):
                    offset = records[-1].offset + 1
                    for record in records:
                        yield record

    def verified(self) -> VerifyReport:
        """The offline checker's report on the log."""
        log_at, clock = self.log_at, SystemClock()

        async def check() -> VerifyReport:
            async with log_to_read(self.data, log_at, clock=clock, ids=SystemIds(clock)) as log:
                return await verify(log, chained=log_at is None)

        return asyncio.run(check())


def stopped_by(once: Path) -> list[psutil.Process]:
    """The processes that a fault of `RFTD_FAULTS`, told by this path, has stopped."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = str(once) in process.environ().get("RFTD_FAULTS", "")
            if ours and process.status() == psutil.STATUS_STOPPED:
                found.append(process)
        except psutil.Error:
            continue
    return found
