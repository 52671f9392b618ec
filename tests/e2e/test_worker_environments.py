"""Real workers: what the daemon knows is in no process that an experiment runs in."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.third_party import install
from synthetic.until import poll

from rftd.workers.hosts.leftovers import MARK

pytestmark = pytest.mark.e2e

CANARIES = {
    "PGPASSWORD": "canary-pg",
    "OPENAI_API_KEY": "canary-openai",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
    "RFTD_KAFKA_PASSWORD": "canary-kafka",
    "RFTD_SERVE_KEY": "canary-serve",
    "TINKER_API_KEY": "canary-tinker",
    "HF_TOKEN": "canary-hf",
    "OTEL_EXPORTER_OTLP_HEADERS": "key=canary-otel",
    "PYTHONSTARTUP": "canary-startup",
}
REWARD = """
import json, os, subprocess, sys
class Tells:
    def score(self, response, truth, task):
        with open(os.environ["PLUGIN_FILE"], "w") as told:
            json.dump(dict(os.environ), told)
        return 1.0
"""


def test_no_worker_has_a_secret_of_the_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reward of a plug-in sees it, which is told by the owner where to write; and as the system has it."""
    parts, told = tmp_path / "parts", tmp_path / "told.json"
    parts.mkdir()
    install(parts, "rftd_tells", REWARD, {"rftd.rewards": {"tells": "rftd_tells:Tells"}})
    monkeypatch.syspath_prepend(str(parts))
    passed = {"PYTHONPATH": str(parts), "PLUGIN_FILE": str(told), "JUDGE_KEY": "judges-own"}
    scene = Scene(tmp_path, "--pass-env", "PYTHONPATH", "--pass-env", "PLUGIN_*", environ={**CANARIES, **passed})
    judge = "{engine_type: external, model_name: m, base_url: http://127.0.0.1:1/v1, api_key: {env: JUDGE_KEY}}"
    with scene.host as host:
        scene.submit(
            EXPERIMENT.replace("exact_match_reward", "tells"),
            "stages=[]",
            f"explorer.auxiliary_models=[{judge}]",
            "explorer.env_vars={SPOKEN: aloud}",
        )
        poll(told.exists, 120.0)
        workers = [each for each in psutil.process_iter() if _is_worker(each, host.pid)]
        found = {each.cmdline()[each.cmdline().index("worker") + 1]: each.environ() for each in workers}
    assert found.keys() == {"explorer", "trainer"}
    assert "canary" not in json.dumps(found)
    assert "JUDGE_KEY" not in found["trainer"], "the role that needs it alone"
    assert found["explorer"]["JUDGE_KEY"] == "judges-own"
    seen = json.loads(told.read_text())
    assert "canary" not in json.dumps(seen)
    assert (seen["SPOKEN"], seen["JUDGE_KEY"], seen["PLUGIN_FILE"]) == ("aloud", "judges-own", str(told))


def _is_worker(process: psutil.Process, daemon: int) -> bool:
    try:
        return process.ppid() == daemon and "worker" in process.cmdline() and MARK in process.environ()
    except psutil.Error:
        return False
