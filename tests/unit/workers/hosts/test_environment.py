"""A worker has what its machine, its specification and its owner give it, and nothing else that the daemon has."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic.until import poll
from synthetic.worlds.launchers import order_of

from rftd.workers.guest import Assignment
from rftd.workers.hosts.environment import WorkerEnvironment
from rftd.workers.hosts.leftovers import MARK
from rftd.workers.hosts.local import LocalExecutor
from rftd.workers.hosts.ray.arrival import take_variables
from rftd.workers.hosts.ray.messages import ActorOrder

CANARIES = {
    "RFTD_TOKEN": "canary-1",
    "RFTD_POSTGRES": "postgresql://u:canary-2@h/d",
    "PGPASSWORD": "canary-3",
    "OPENAI_API_KEY": "canary-4",
    "AWS_SECRET_ACCESS_KEY": "canary-5",
    "HF_TOKEN": "canary-6",
    "VLLM_API_KEY": "canary-7",
    "RFTD_SERVE_KEY": "canary-8",
    "RFTD_KAFKA_PASSWORD": "canary-9",
    "TINKER_API_KEY": "canary-10",
    "PYTHONPATH": "canary-11",
    "PYTHONSTARTUP": "canary-12",
    "LD_PRELOAD": "",
    "BASH_ENV": "canary-13",
    "OTEL_EXPORTER_OTLP_HEADERS": "key=canary-14",
    "SOMETHING_ELSE": "canary-15",
}
MACHINES = {
    "PATH": "/bin",
    "HOME": "/home/x",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "CUDA_VISIBLE_DEVICES": "1",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "2",
    "LD_LIBRARY_PATH": "/lib",
    "HTTPS_PROXY": "http://proxy:3128",
    "no_proxy": "localhost",
    "HF_HOME": "/models",
    "RFTD_FAULTS": "x=stop",
}


def test_a_worker_has_what_its_machine_has_and_no_secret_of_the_daemons(tmp_path: Path) -> None:
    assert WorkerEnvironment(CANARIES | MACHINES).of(order_of(tmp_path)) == MACHINES


def test_it_has_what_its_order_names_and_what_the_log_needs(tmp_path: Path) -> None:
    environment = WorkerEnvironment(CANARIES, needed=("RFTD_KAFKA_PASSWORD", "NOT_SET"))
    order = order_of(tmp_path, environment=("OPENAI_API_KEY", "NOT_SET_EITHER"))
    assert environment.of(order).keys() == {"RFTD_KAFKA_PASSWORD", "OPENAI_API_KEY"}


def test_the_owner_passes_variables_on_by_name_and_by_pattern(tmp_path: Path) -> None:
    environment = WorkerEnvironment(CANARIES, pass_env=("PYTHONPATH", "SOME*"))
    assert environment.of(order_of(tmp_path)).keys() == {"PYTHONPATH", "SOMETHING_ELSE"}


@pytest.mark.parametrize("name", ["RFTD_TOKEN", "RFTD_POSTGRES", "PGPASSWORD"])
def test_nobody_names_the_keys_of_the_daemon(tmp_path: Path, name: str) -> None:
    environment = WorkerEnvironment(CANARIES, needed=(name,), pass_env=("*", name))
    assert name not in environment.of(order_of(tmp_path, environment=(name,)))


def test_a_process_has_no_more_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a real process: what it inherits is inherited by whatever it starts."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    told = tmp_path / "told"
    program = f"import json, os; open({str(told)!r}, 'w').write(json.dumps(dict(os.environ)) + chr(10))"
    executor = LocalExecutor("none", home=str(tmp_path), command=(sys.executable, "-c", program))
    handle = executor.start(order_of(tmp_path))
    poll(lambda: handle.exit_code() is not None)
    found = json.loads(told.read_text())
    assert "canary" not in json.dumps(found)
    assert found["PATH"] == os.environ["PATH"]
    assert found[MARK]


def test_an_actor_of_a_node_drops_what_the_node_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (CANARIES | {"RAY_JOB_ID": "01", "PLUGIN_PLACE": "node", MARK: "place"}).items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    try:
        passed = {"PLUGIN_PLACE": "daemon", "PLUGIN_B": "b"}
        take_variables(actor_order(env={"OPENAI_API_KEY": "granted"}, defaults=passed, keep=("PLUGIN_*",)))
        found = dict(os.environ)
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert "canary" not in json.dumps(found)
    assert {name: found[name] for name in ("OPENAI_API_KEY", "PLUGIN_PLACE", "PLUGIN_B", "RAY_JOB_ID", MARK)} == {
        "OPENAI_API_KEY": "granted",
        "PLUGIN_PLACE": "node",
        "PLUGIN_B": "b",
        "RAY_JOB_ID": "01",
        MARK: "place",
    }
    assert found["PATH"] == before["PATH"]


def actor_order(**changes: Any) -> ActorOrder:
    order = order_of(Path("/tmp"))
    assignment = Assignment(
        worker=order.worker, experiment=order.experiment, role="trainer", slot=-1, log_url="unix:/x", spine_offset=0
    )
    plain = ActorOrder(
        assignment=assignment,
        place="p",
        namespace="n",
        begin=True,
        devices=0,
        threads=1,
        log_path="/x",
        by_node=False,
        paths=(),
        release="0",
        env={},
    )
    return msgspec.structs.replace(plain, **changes)
