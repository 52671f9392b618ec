"""`rftd demo`, in order: files, daemon, experiment, progress, outcome."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import httpx
import msgspec

from rftd.daemon.cli.living_wait import LivingWait
from rftd.daemon.cli.output.terminal import width_of
from rftd.daemon.cli.settings import Settings
from rftd.daemon.config.loading import Submission, load_text
from rftd.daemon.demo.outcome import DemoOutcome, draw_curve, read_examples, read_outcome, text_of
from rftd.daemon.demo.progress import DemoReading, Progress
from rftd.daemon.demo.sums import write_sums
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.http.views import access, commands, experiments, history
from rftd.daemon.http.views.moment import ENDED
from rftd.ops.errors import ConfigError, NotFoundError, RftdError, UnreachableError, UsageError, WaitTimeoutError
from rftd.ops.extras import PLOT, TORCH, check_extra
from rftd.ops.ids import Ids
from rftd.workers.devices.discovery import find_host
from rftd.workers.devices.host import ANY_HOST

RESERVE = "64MiB"
"""Disk space reserved by the demo's daemon: a demo writes little."""
HEAD_SIZES = {"torch": None, "vllm": 32}
"""Numbers in each of the model's four heads, by rollout engine: vLLM on a CPU does not support 16."""


def experiment_text() -> str:
    """Returns the demo's experiment file, identical to examples/demo.yaml."""
    return files("rftd.daemon.demo").joinpath("experiment.yaml").read_text()


def run_demo(
    folder: Path,
    *,
    seed: int,
    overrides: tuple[str, ...],
    bar: float,
    clustered: bool = False,
    engine: str = "torch",
    timeout_s: float = 30.0,
    keep: bool = False,
    show: Callable[[str], object] | None = None,
    ids: Ids,
    echo: Callable[..., None],
) -> bool:
    """Runs the demo below `folder`, `clustered` on a private Kafka and Postgres; `engine` makes the rollouts.

    `show` gets a link signing a browser in at the run's page. With `keep`, the daemon stays until an interrupt.

    A daemon without an answer within `timeout_s` is asked again, as long as its process lives. True if held-out
    accuracy rose by at least `bar`. Raises NotInstalledError, and ConfigError for an unavailable engine, before
    creating anything.
    """
    check_extra(TORCH, "the demo")
    check_extra(PLOT, "the picture of the demo")
    submission = _submission(folder, seed=seed, overrides=overrides, engine=engine)
    _make(folder)
    from rftd.workers.models.tiny_model import make_tiny_model

    echo("A tiny model learns to add: from given answers (SFT), then from its own (GRPO).")
    echo("The experiment is an ordinary file: examples/demo.yaml")
    with ExitStack() as stack:
        server_environ, check = stack.enter_context(_servers(folder / "data" / "stack", enabled=clustered, echo=echo))
        progress = Progress(_write, width=lambda: width_of(sys.stdout), monotonic_s=time.monotonic)
        # Called before any further output, including an error: the line of progress has no line end.
        stack.callback(progress.end)

        def say_wait(text: str) -> None:
            progress.end()
            echo(text)

        began_s = time.monotonic()
        write_sums(folder / "tasks", seed=seed)
        server_environ = {"RFTD_DISK_RESERVE": os.environ.get("RFTD_DISK_RESERVE", RESERVE), **server_environ}
        daemon = DaemonHost(folder / "data", folder / "daemon.log", environ=server_environ, say=say_wait, check=check)
        host = stack.enter_context(daemon)
        questions = Questions(host, timeout_s=timeout_s, say=say_wait)
        make_tiny_model(folder / "model", seed=seed, head_size=HEAD_SIZES[engine])
        request_id = str(ids.new())  # repeated after a crash, it is the same submission
        body = commands.Submit(config=submission.config)
        name = questions.ask(lambda client: client.send(commands.submit, body, request_id=request_id).value.name)
        echo(f"daemon {host.url}   experiment {name}   files {_near(folder)}")
        if show is not None:
            show(questions.ask(_link))
        progress.begin()
        follow_progress(questions, name, progress)
        progress.end()
        outcome = questions.ask(lambda client: read_outcome(client.url, host.headers, name, timeout_s=timeout_s))
        examples = questions.ask(lambda client: read_examples(client, name))
        outcome = msgspec.structs.replace(outcome, examples=examples)
        facts: dict[str, Any] = {"url": host.url, "experiment": name, "restarts": host.restarts, "clustered": clustered}
        tell = partial(_tell, outcome, folder, **facts, stays=keep, echo=echo)
        if keep:
            tell(wall_s=time.monotonic() - began_s)
            stay(host)
    if not keep:
        tell(wall_s=time.monotonic() - began_s)
    return _verdict(outcome, bar, echo)


def _tell(
    outcome: DemoOutcome,
    folder: Path,
    *,
    url: str,
    experiment: str,
    restarts: int,
    clustered: bool,
    stays: bool,
    wall_s: float,
    echo: Callable[..., None],
) -> None:
    """Writes the outcome as JSON and as a picture, and says it."""
    (folder / "outcome.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1))
    draw_curve(outcome, folder / "reward.png")
    echo(
        text_of(
            outcome,
            program=_program(),
            url=url,
            experiment=experiment,
            folder=_near(folder),
            wall_s=wall_s,
            restarts=restarts,
            clustered=clustered,
            stays=stays,
        )
    )


def stay(host: Tended, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Keeps the daemon alive until an interrupt from the keyboard."""
    with suppress(KeyboardInterrupt):
        while True:
            host.tend()
            sleep(POLL_S)


def _link(client: Client) -> str:
    """Returns a link signing a browser in at the daemon."""
    return client.url + client.send(access.new_link, access.NewLink()).value.path


def _submission(folder: Path, *, seed: int, overrides: tuple[str, ...], engine: str) -> Submission:
    """Returns the demo's experiment. Raises ConfigError for an engine unavailable to local workers."""
    # A pause would wait for a person to resume; the learning is judged at the end.
    overrides = ("trainer.max_idle_steps=0", *overrides)
    if engine != "torch":
        overrides = (f"explorer.rollout_model.engine_type={engine}", *overrides)
    environment = {**os.environ, "RFTD_DEMO_DIR": str(folder), "RFTD_DEMO_SEED": str(seed)}
    # Workers of a cluster have separate packages.
    host = find_host() if environment.get("RFTD_WORKERS", "local") == "local" else ANY_HOST
    submission = load_text(
        experiment_text(), "examples/demo.yaml", overrides=overrides, environ=environment, cwd=folder, host=host
    )
    if engine != "torch" and not made_by(submission, engine):
        raise ConfigError(
            f"rollouts would be made by another engine than {engine} here",
            field="explorer.rollout_model.engine_type",
            fix=f"leave --engine out; {'; '.join(submission.warnings) or 'an override changes it'}",
        )
    return submission


def _make(folder: Path) -> None:
    """Creates the demo's folder. Raises UsageError if the folder exists or cannot be created."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        problem = "it exists already" if folder.exists() else f"it cannot be made: {error.strerror or error}"
        raise UsageError(problem, where=str(folder), field="--folder", fix="name a new folder") from None


def made_by(submission: Submission, engine: str) -> bool:
    """True if the engine makes the rollouts of every exploring stage."""
    return all(stage.rollout.engine == engine for stage in submission.spec.stages if stage.kind == "both")


@contextmanager
def _servers(
    folder: Path, *, enabled: bool, echo: Callable[..., None]
) -> Iterator[tuple[Mapping[str, str], Callable[[], None]]]:
    """Runs real servers with data below `folder` while the block runs.

    Yields the environment pointing `rftd serve` at the servers, and a check raising UnreachableError once a server has
    ended. Unless `enabled`, nothing is started and the environment is empty. The password is passed only in the
    environment.
    """
    if not enabled:
        yield {}, lambda: None
        return
    from rftd.daemon.stack.kafka import KafkaBroker
    from rftd.daemon.stack.postgres import PostgresServer

    with ExitStack() as stack:
        echo("starting Apache Kafka and PostgreSQL; the first time they are downloaded")
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        database = stack.enter_context(PostgresServer(folder / "postgres"))
        echo(f"Kafka {broker.bootstrap}   PostgreSQL {database.url_without_password}")

        def check() -> None:
            broker.check_alive()
            database.check_alive()

        yield {"RFTD_KAFKA": broker.bootstrap, "RFTD_POSTGRES": database.url}, check


def follow_progress(
    questions: Questions, name: str, progress: Progress, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Shows the experiment's progress until the end.

    Reads only the summary and the evaluations, both cheap: the full page takes as much processor time as training.
    """
    rewards: list[float] = []
    while True:
        summary = questions.ask(lambda client: client.ask(experiments.summary, name=name).value)
        ended = summary.state in ENDED
        if summary.reward_mean is not None:
            rewards.append(summary.reward_mean)
        if ended or progress.due():
            evals = questions.ask(lambda client: client.ask(history.evals, name=name).value.items)
            progress.show(DemoReading(summary=summary, rewards=rewards, evals=evals))
        if ended:
            return
        sleep(POLL_S)


def _write(text: str) -> None:
    """Writes text to standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _near(path: Path) -> Path:
    """Returns the path relative to the current folder, if below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _program() -> str:
    """Returns the program name for the reader's shell: a virtual environment not activated is not on the path."""
    called = Path(sys.argv[0])
    return str(_near(called.absolute())) if called.name == "rftd" else "rftd"


def _verdict(outcome: DemoOutcome, bar: float, echo: Callable[..., None]) -> bool:
    """True if the experiment completed and held-out accuracy rose by at least `bar` during GRPO; writes the reason if
    not.
    """
    if outcome.state != "completed":
        echo(f"\nthe experiment ended as {outcome.state}: {outcome.reason}")
        return False
    rise = outcome.after_grpo - outcome.after_sft
    if rise < bar:
        echo(f"\nheld-out accuracy rose by {rise:.3f}, the bar is {bar}")
    return rise >= bar


T = TypeVar("T")

POLL_S: Final = 0.5
"""Seconds between two polls of the daemon."""
REFUSED_S: Final = 60.0
"""Time during which a restarted daemon may not know the experiment, while reading its log."""
STARTS: Final = 3
"""Maximum number of starts of a daemon that dies while starting."""


class Tended(Protocol):
    """A daemon restarted after crashes: a `DaemonHost`."""

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        ...

    @property
    def settings(self) -> Settings:
        """Settings of the daemon's clients."""
        ...

    def tend(self) -> None:
        """Restarts a dead daemon; raises UnreachableError if it dies while starting."""
        ...


class Questions:
    """Requests to the demo's daemon, repeated across slow answers and restarts of the daemon."""

    def __init__(
        self,
        host: Tended,
        *,
        timeout_s: float,
        say: Callable[[str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`timeout_s` is the time-out of one attempt, then repeated; `say` reports a long wait."""
        self._host = host
        self._timeout_s = timeout_s
        self._say = say
        self._monotonic_s = monotonic_s
        self._sleep = sleep

    def ask(self, question: Callable[[Client], T]) -> T:
        """Returns the daemon's answer; a killed daemon is restarted, and asked again.

        Raises permanent refusals of the daemon, and UnreachableError if it dies at every start.
        """
        wait = LivingWait("the daemon has not answered", say=self._say, monotonic_s=self._monotonic_s)
        began_s = self._monotonic_s()
        while True:
            self._tended()
            try:
                with Client(replace(self._host.settings, timeout_s=self._timeout_s), {}) as client:
                    return question(client)
            except (UnreachableError, WaitTimeoutError, NotFoundError, OSError, httpx.HTTPError) as error:
                if _refuses(error) and self._monotonic_s() - began_s > REFUSED_S:
                    raise
                reason = error.what if isinstance(error, RftdError) else str(error) or type(error).__name__
            wait.goes_on(self._host.pid, reason)
            self._sleep(POLL_S)

    def _tended(self) -> None:
        for attempt in range(1, STARTS + 1):
            try:
                return self._host.tend()
            except UnreachableError:
                if attempt == STARTS:
                    raise
            self._sleep(POLL_S)


def _refuses(error: Exception) -> bool:
    """True if the daemon answered, except with a temporary unavailability."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code != HTTPStatus.SERVICE_UNAVAILABLE
    return isinstance(error, NotFoundError)
