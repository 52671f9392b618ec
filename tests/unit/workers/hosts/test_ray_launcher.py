"""The daemon's side of Ray, with a driver that is a script: it never waits, whatever becomes of the cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.until import poll
from synthetic.worlds.launchers import order_of

from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.ops.releases import release_of
from rftd.ops.tracing.trace_options import HEADERS, TraceOptions
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.spec.engines import ClusterSpec
from rftd.streams.spec.split_submission import ROLES
from rftd.workers.hosts.environment import WorkerEnvironment
from rftd.workers.hosts.executor import UNFIT_PLACE, WorkerOrder
from rftd.workers.hosts.ray.arrival import refusal_of
from rftd.workers.hosts.ray.deaths import reason_of
from rftd.workers.hosts.ray.launcher import RayExecutor, RayOptions, driver_environment
from rftd.workers.hosts.ray.messages import ActorOrder, RayNode, whole_lines
from rftd.workers.hosts.ray.placement import bundles_of, lack_of, strategy_of

DRIVER = """
import json, sys, threading, time
folder = sys.argv[1]
def tell(**report):
    print(json.dumps(report), flush=True)
def follow():
    told = 0
    while True:
        with open(f"{folder}/says") as says:
            lines = [line for line in says.read().splitlines() if line]
        for line in lines[told:]:
            if line in ("die", "die halfway"):
                open(f"{folder}/says", "w").close()
                import os
                if line == "die halfway":
                    os.write(1, b'{"type":"cluster","nodes":[{"id":"a')
                os._exit(9)
            print(line, flush=True)
        told = len(lines)
        time.sleep(0.02)
threading.Thread(target=follow, daemon=True).start()
for line in sys.stdin:
    with open(f"{folder}/heard", "a") as heard:
        heard.write(line)
"""
"""Writes what it hears to a file, and says what another holds."""


def launcher_of(folder: Path, driver: tuple[str, ...], **more: Any) -> RayExecutor:
    return RayExecutor(
        "unix:/tmp/log.sock",
        RayOptions(address="10.0.0.1:6379", runtime_env={"env_vars": {"A": "b"}}),
        ids=SystemIds(SystemClock()),
        logger=logger(),
        driver_log=folder / "ray.log",
        driver=driver,
        **more,
    )


class Play:
    """A launcher, and the script that it takes for its driver."""

    def __init__(
        self, folder: Path, traces: TraceOptions | None = None, roles: frozenset[str] = ROLES, **environ: str
    ) -> None:
        self.folder = folder
        (folder / "driver.py").write_text(DRIVER)
        (folder / "says").touch()
        (folder / "heard").touch()
        driver = (sys.executable, str(folder / "driver.py"), str(folder))
        environment = WorkerEnvironment(environ, needed=HEADERS, pass_env=("PLUGIN_*",))
        self.launcher = launcher_of(folder, driver, environment=environment, traces=traces, roles=roles)

    def say(self, **report: Any) -> None:
        with (self.folder / "says").open("a") as says:
            says.write(json.dumps(report) + "\n")

    def die(self, *, halfway: bool = False) -> None:
        """The driver's end; `halfway`: through a line that it was writing."""
        with (self.folder / "says").open("a") as says:
            says.write("die halfway\n" if halfway else "die\n")

    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "heard").read_text().splitlines()]

    def said_of(self, order: WorkerOrder) -> list[dict[str, Any]]:
        wanted = str(order.worker)
        return [each for each in self.heard() if wanted in json.dumps(each)]

    def close(self) -> None:
        child = self.launcher._child
        if child is not None and child.stdin is not None:
            child.stdin.close()


def test_a_worker_is_told_where_its_spans_go_and_what_the_receiver_wants(tmp_path: Path) -> None:
    options = TraceOptions(url="http://collector:4318/v1/traces", ratio=0.5)
    play = Play(tmp_path, options, OTEL_EXPORTER_OTLP_HEADERS="key=1", OTHER="x")
    try:
        order = order_of(tmp_path)
        play.launcher.start(order)
        poll(lambda: play.said_of(order))
        [said] = play.said_of(order)
    finally:
        play.close()
    assert msgspec.convert(said["assignment"]["traces"], TraceOptions) == options
    assert said["env"] == {"OTEL_EXPORTER_OTLP_HEADERS": "key=1"}


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    made = Play(tmp_path, SECRET="hidden", OTHER="x", PLUGIN_PLACE="there")
    yield made
    made.close()


def test_a_worker_goes_from_its_order_to_its_end_by_what_is_heard_of_it(play: Play, tmp_path: Path) -> None:
    order = order_of(tmp_path, devices=2, environment=("SECRET",), cluster=ClusterSpec(namespace="a/b"))
    handle = play.launcher.start(order)
    assert handle.exit_code() is None
    assert handle.waits is not None
    assert handle.waits.waiting_for == "Ray at 10.0.0.1:6379 to answer"
    poll(lambda: play.said_of(order))
    [said] = play.said_of(order)
    assert (said["namespace"], said["devices"], said["begin"]) == ("a/b", 2, True)
    assert said["env"] == {"SECRET": "hidden"}, "those that it needs, and no others"
    assert said["defaults"] == {"PLUGIN_PLACE": "there"}
    assert said["keep"] == ["PLUGIN_*", "PYTHONPATH", "A"], "what the owner passes, and what he has Ray set"
    play.say(type="cluster", nodes=[])
    play.say(
        type="actor", worker=str(order.worker), state="pending", waits="2 GPUs on one node; 1 is free", unblock="u"
    )
    poll(lambda: handle.waits is not None and handle.waits.state == "placing")
    assert handle.waits is not None
    assert handle.waits.waiting_for == "2 GPUs on one node; 1 is free"
    play.say(type="actor", worker=str(order.worker), state="running", pid=31, node="10.0.0.2")
    poll(lambda: handle.pid == 31)
    assert handle.waits is None
    started = WorkerStarted(worker=order.worker, role="trainer", slot=-1, host="x", pid=31, process_start_s=1.0)
    assert play.launcher.lives(started) is True
    handle.terminate()
    handle.kill()
    handle.kill()
    poll(lambda: len(play.said_of(order)) == 3)
    assert [each["at_once"] for each in play.said_of(order)[1:]] == [False, True]
    play.say(type="actor", worker=str(order.worker), state="ended", code=-1, reason="its node is lost")
    poll(lambda: handle.exit_code() == -1)
    assert handle.reason == "its node is lost"
    assert play.launcher.lives(started) is False
    assert play.launcher.lives(msgspec.structs.replace(started, worker=UUID(int=1))) is None


@pytest.mark.parametrize("halfway", [False, True])
def test_a_driver_that_dies_is_followed_by_one_that_is_told_all_of_it(
    play: Play, tmp_path: Path, halfway: bool
) -> None:
    """Ray ends a process that has not reached its control store for a minute: the daemon must not be that process."""
    running, waiting, ended = (order_of(tmp_path, "explorer", slot) for slot in range(3))
    handles = [play.launcher.start(order) for order in (running, waiting, ended)]
    poll(lambda: play.said_of(ended))
    play.say(type="cluster", nodes=[])
    play.say(type="actor", worker=str(running.worker), state="running", pid=31)
    play.say(type="actor", worker=str(ended.worker), state="ended", code=0)
    poll(lambda: handles[2].exit_code() == 0 and handles[0].pid == 31)
    play.die(halfway=halfway)
    poll(lambda: len(play.said_of(waiting)) == 2)
    assert [each["begin"] for each in play.said_of(running)] == [True, False], "it runs: it is only looked for"
    assert [each["begin"] for each in play.said_of(waiting)] == [True, True]
    assert len(play.said_of(ended)) == 1
    assert handles[0].pid == 31
    assert handles[0].exit_code() is None


def test_a_line_that_its_writer_did_not_finish_is_none() -> None:
    """A driver whose daemon was killed in the middle of a request must notice its end, and leave."""
    assert list(whole_lines([b'{"type":"end"}\n', b'{"type":"or'])) == [b'{"type":"end"}\n']


def test_actor_opening_an_engine_is_sought_without_waiting_and_by_the_next_driver(play: Play, tmp_path: Path) -> None:
    there, twice = order_of(tmp_path), order_of(tmp_path, "explorer", 0)
    searches = play.launcher.opening([there, twice])
    asked = {each["place"]: each["number"] for each in heard_of(play, "seek", 2)}
    assert not searches[0].over
    assert searches[0].waits is not None, "Ray has not answered"
    play.die()
    poll(lambda: len(heard_of(play, "seek", 4)) == 4)
    play.say(type="cluster", nodes=[])
    ids = {"trainer": [str(there.worker)], "explorer": [str(there.worker), str(twice.worker)]}
    for place, number in asked.items():
        play.say(type="actor", worker=number, state="ended", code=0, found=ids[place.split("/")[2]])
    poll(lambda: all(search.over for search in searches))
    assert searches[0].waits is None
    assert searches[0].worker(there) == there.worker
    assert searches[1].worker(twice) is None, "of two nobody knows which one is to stay"
    adopted = searches[0].adopt(there)
    assert adopted is not None
    assert adopted.exit_code() is None
    poll(lambda: play.said_of(there))
    assert not play.said_of(there)[-1]["begin"]


def heard_of(play: Play, kind: str, count: int) -> list[dict[str, Any]]:
    """The requests of a kind, once there are so many."""
    poll(lambda: len([each for each in play.heard() if each.get("type") == kind]) >= count)
    return [each for each in play.heard() if each.get("type") == kind]


def test_a_driver_that_reads_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    """While it imports Ray it does not; a pipe holds the orders of some fifty workers."""
    launcher = launcher_of(tmp_path, (sys.executable, "-c", "import time; time.sleep(600)"))
    poll(lambda: launcher._child is not None)
    child = launcher._child
    assert child is not None
    try:
        orders = [order_of(tmp_path, "explorer", slot, paths=("/models/" + "x" * 4000,)) for slot in range(64)]
        handles = [launcher.start(order) for order in orders]
        assert all(handle.waits is not None for handle in handles)
    finally:
        child.kill()
        child.wait()


def test_what_was_given_up_ends_although_no_driver_ever_meets_the_cluster(play: Play, tmp_path: Path) -> None:
    handle = play.launcher.start(order_of(tmp_path))
    poll(lambda: play.heard())
    handle.kill()
    play.die()
    poll(lambda: handle.exit_code() is not None)
    assert handle.reason == "given up while Ray was away"


def test_the_timeline_is_written_once_by_whoever_is_on_the_cluster(tmp_path: Path) -> None:
    drawn = ClusterSpec(timeline=True)
    orders = [
        order_of(tmp_path, cluster=drawn),
        *(order_of(tmp_path, "explorer", each, cluster=drawn) for each in (0, 1)),
    ]
    for roles, writer in ((("explorer", "trainer"), "trainer/-1"), (("explorer",), "explorer/0")):
        folder = tmp_path / writer.replace("/", "_")
        folder.mkdir()
        play = Play(folder, roles=frozenset(roles))
        try:
            for order in orders:
                if order.role in roles:
                    play.launcher.clear(order)
            sweeps = heard_of(play, "sweep", len([order for order in orders if order.role in roles]))
        finally:
            play.close()
        assert [each["place"].split("/", 2)[2] for each in sweeps if each["timeline"]] == [writer]


def test_an_experiment_of_another_cluster_is_refused_with_both(play: Play, tmp_path: Path) -> None:
    handle = play.launcher.start(order_of(tmp_path, cluster=ClusterSpec(address="10.0.0.9:6379")))
    assert handle.exit_code() == UNFIT_PLACE, "started again, it would be refused again"
    assert "10.0.0.9:6379" in handle.reason
    assert "10.0.0.1:6379" in handle.reason


def test_a_refusal_of_the_cluster_is_what_every_worker_waits_for(play: Play, tmp_path: Path) -> None:
    handle = play.launcher.start(order_of(tmp_path))
    play.say(type="away", reason="Ray at 10.0.0.1:6379 refuses this daemon's token", fix="set RAY_AUTH_TOKEN")
    poll(lambda: handle.waits is not None and "refuses" in handle.waits.waiting_for)
    assert handle.waits is not None
    assert handle.waits.state == "ray_away"
    assert "RAY_AUTH_TOKEN" in handle.waits.unblock
    assert play.launcher.host().clustered


def node(gpus: float, free: float, cpus: float = 4, free_cpus: float = 4) -> RayNode:
    return RayNode(id=str(free), address="10.0.0.2", gpus=gpus, free_gpus=free, cpus=cpus, free_cpus=free_cpus)


def test_a_worker_reserves_one_node_and_never_nodes_that_it_would_not_use() -> None:
    assert bundles_of(0, 1) == [{"CPU": 1}]
    assert bundles_of(2, 1) == [{"CPU": 1, "GPU": 2}]
    assert bundles_of(16, 2) == [{"CPU": 1, "GPU": 8}] * 2
    assert bundles_of(0, 3) == [{"CPU": 1}] * 3
    assert [strategy_of(nodes) for nodes in (1, 2)] == ["STRICT_PACK", "STRICT_SPREAD"]


def test_a_submission_is_held_against_what_the_nodes_say_of_themselves(play: Play) -> None:
    first = node(2, 2)
    second = msgspec.structs.replace(node(1, 0), address="10.0.0.3", memory_bytes=7, gpu_memory_bytes=5)
    play.say(type="cluster", nodes=[msgspec.to_builtins(msgspec.structs.replace(first, sized=False))])
    poll(lambda: play.launcher._cluster is not None)
    play.say(type="cluster", nodes=[msgspec.to_builtins(each) for each in (first, second)])
    host = play.launcher.host()
    assert (host.clustered, host.most_gpus) == (True, 2)
    assert [(each.kind, each.index, each.node, each.memory_bytes) for each in host.devices] == [
        ("cpu", 0, "10.0.0.2", 0),
        ("cuda", 0, "10.0.0.2", 0),
        ("cuda", 1, "10.0.0.2", 0),
        ("cpu", 1, "10.0.0.3", 7),
        ("cuda", 2, "10.0.0.3", 5),
    ]


@pytest.mark.parametrize(
    ("devices", "wanted", "nodes", "said"),
    [
        (16, 2, [node(8, 8), node(8, 7)], "8 GPUs and 1 CPU on each of 2 nodes; 1 is free"),
        (16, 2, [node(8, 8), node(8, 8)], ""),
        (0, 2, [node(0, 0, 2, 1)], "1 CPU on each of 2 nodes; 1 is free"),
        (2, 1, [node(4, 1), node(4, 0)], "2 GPUs on one node; 1 is free"),
        (1, 1, [node(4, 0)], "1 GPU on one node; none is free"),
        (
            16,
            1,
            [node(8, 8), node(8, 7)],
            "16 GPUs on one node; no node has more than 8",
        ),
        (1, 1, [node(0, 0)], "1 GPU on one node; the cluster has none"),
        (1, 1, [], "a node, but the cluster has none"),
        (0, 1, [node(0, 0, 2, 0)], "1 CPU on one node; none is free"),
        (0, 1, [node(0, 0, 2, 1)], ""),
    ],
)
def test_what_is_waited_for_is_said_with_what_is_free(
    devices: int, wanted: int, nodes: list[RayNode], said: str
) -> None:
    assert lack_of(devices, wanted, nodes) == said


def test_the_memory_monitor_is_named_although_ray_tells_only_itself() -> None:
    said = reason_of(None, "NODE_OUT_OF_MEMORY", "Task was killed due to the node running low on memory.", "10.0.0.2")
    assert said.startswith("Ray's memory monitor ended its actor on 10.0.0.2")
    assert "running low" in said


def test_a_lost_node_is_named() -> None:
    kinds = {number: SimpleNamespace(name=name) for number, name in enumerate(("UNSPECIFIED", "NODE_DIED"))}
    enum = SimpleNamespace(enum_type=SimpleNamespace(values_by_number=kinds))
    died = SimpleNamespace(
        reason=1, error_message="health check failed", DESCRIPTOR=SimpleNamespace(fields_by_name={"reason": enum})
    )
    cause = SimpleNamespace(HasField=lambda name: False, actor_died_error_context=died)
    assert reason_of(cause, "", "", "10.0.0.2") == "its node 10.0.0.2 is lost: health check failed"


def test_a_node_without_the_model_or_of_another_release_is_named(tmp_path: Path) -> None:
    order = msgspec.convert(
        {
            "assignment": {"worker": str(UUID(int=1)), "experiment": str(UUID(int=2)), "role": "trainer", "slot": -1}
            | {"log_url": "unix:x"},
            "place": "p",
            "namespace": "",
            "begin": True,
            "devices": 0,
            "threads": 1,
            "log_path": "x",
            "by_node": False,
            "paths": [str(tmp_path), "/models/not-there"],
            "release": release_of("rftd"),
            "env": {},
            "type": "order",
        },
        ActorOrder,
    )
    assert "node n1 has no /models/not-there" in refusal_of(order, "n1")
    assert "the daemon is of 0.0.1" in refusal_of(msgspec.structs.replace(order, release="0.0.1"), "n1")
    assert refusal_of(msgspec.structs.replace(order, paths=(str(tmp_path),)), "n1") == ""


def test_a_token_is_shown_to_a_cluster_unless_somebody_turned_that_off() -> None:
    def given(**environ: str) -> dict[str, str]:
        return driver_environment(WorkerEnvironment(environ))

    assert "RAY_AUTH_MODE" not in given(OTHER="x")
    assert given(RAY_AUTH_TOKEN="t")["RAY_AUTH_MODE"] == "token"
    assert given(RAY_AUTH_TOKEN_PATH="/t")["RAY_AUTH_MODE"] == "token"
    assert given(RAY_AUTH_TOKEN="t", RAY_AUTH_MODE="disabled")["RAY_AUTH_MODE"] == "disabled"


def test_a_driver_has_what_any_program_of_the_machine_has_and_no_key_of_the_daemons() -> None:
    environ = {"PATH": "/bin", "CUDA_HOME": "/cuda", "RAY_ADDRESS": "h:1", "RFTD_TOKEN": "t", "OPENAI_API_KEY": "k"}
    found = driver_environment(WorkerEnvironment(environ, pass_env=("*",)))
    assert found.keys() == {"PATH", "CUDA_HOME", "RAY_ADDRESS", "OPENAI_API_KEY", "RAY_USAGE_STATS_ENABLED"}
    alone = driver_environment(WorkerEnvironment(environ))
    assert alone.keys() == {"PATH", "CUDA_HOME", "RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED"}
