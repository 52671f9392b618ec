"""Where a daemon's workers run: the option's words, and the launcher that comes of them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from structlog.testing import capture_logs

from rftd.daemon.cli import launching_options
from rftd.daemon.cli.service_options import ServiceOptions
from rftd.daemon.http.api.probes import Gate
from rftd.daemon.serve import launching as launching_module
from rftd.daemon.serve import service
from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.launching import Launching, launchers_of
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConfigError, UsageError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.streams.log.backend import backend_of
from rftd.streams.log.backend import log_url as parsed_log_url
from rftd.workers.hosts.by_role import ExecutorByRole
from rftd.workers.hosts.local import LocalExecutor
from rftd.workers.hosts.ray.launcher import RayOptions

BOTH = frozenset(("explorer", "trainer"))


@pytest.fixture(autouse=True)
def ray_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rftd.workers.devices.discovery.installed_packages", lambda: {"ray": "2"})


@pytest.mark.parametrize(
    ("words", "roles", "on_ray"),
    [
        ([], BOTH, []),
        (["--workers", "ray"], BOTH, BOTH),
        (["--workers", "explorer=ray,trainer=local"], BOTH, ["explorer"]),
        (["--workers", "trainer=ray, explorer=local"], BOTH, ["trainer"]),
        (["--workers", "explorer=ray,trainer=local", "--roles", "trainer"], ["trainer"], []),
        (["--workers", "ray", "--roles", "explorer"], ["explorer"], ["explorer"]),
        (["--workers", "external"], [], []),
    ],
)
def test_one_word_is_for_both_roles_and_a_pair_for_each(words: list[str], roles: list[str], on_ray: list[str]) -> None:
    said: list[Launching] = []

    @click.command()
    @launching_options.launching_options
    def serve(launching: Launching) -> None:
        said.append(launching)

    serve.main([*words, "--ray-address", "h:1"], standalone_mode=False)
    [found] = said
    assert (found.roles, found.on_ray) == (frozenset(roles), frozenset(on_ray))
    assert found.ray == (RayOptions(address="h:1") if on_ray else RayOptions())
    assert found.decides == (roles != ["explorer"])


def test_a_daemon_that_decides_answers_requests_and_keeps_trackers_and_no_other(tmp_path: Path) -> None:
    """One that only starts explorers would refuse what is for the other one on its log."""
    clock = SystemClock()
    nothing: Any = None
    supervisor: Any = SimpleNamespace(known=nothing, for_asker=lambda asker: nothing)
    owned: Any = SimpleNamespace(log=nothing, worker_url="unix:x")
    every = ["requests", "trackers", "terms"]
    for roles, parts_of_it in ((BOTH, every), (frozenset(), every), (frozenset(("explorer",)), [])):
        options = ServiceOptions(data=tmp_path, launching=Launching(roles=roles))
        parts = service._Parts(
            options, DataFolder(tmp_path), Gate(), AsyncExitStack(), clock=clock, ids=SystemIds(clock), logger=logger()
        )
        terms = parts.recomputations(owned, supervisor)
        assert list(parts.deciding(owned, supervisor, nothing, nothing, terms)) == parts_of_it


def test_processes_of_this_machine_are_started_without_anything_of_ray(tmp_path: Path) -> None:
    clock = SystemClock()

    def made(**changes: frozenset[str]) -> object:
        return launchers_of(
            Launching(**changes), "unix:x", DataFolder(tmp_path), ids=SystemIds(clock), logger=logger(), traces=None
        )

    assert isinstance(made(), LocalExecutor)
    nobody = made(roles=frozenset())
    assert isinstance(nobody, LocalExecutor)
    assert not nobody.host().seen
    assert not isinstance(made(roles=BOTH), ExecutorByRole)


def test_a_daemon_on_a_cluster_warns_of_what_ray_leaves_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(address: str) -> list[str]:
        launching = Launching(on_ray=BOTH, ray=RayOptions(address=address))
        with capture_logs() as lines:
            launchers_of(
                launching, "unix:x", DataFolder(tmp_path), ids=SystemIds(SystemClock()), logger=logger(), traces=None
            )
        return [line["what"] for line in lines if line["event"] == "ray.open"]

    monkeypatch.setattr(
        launching_module, "RayExecutor", lambda *_, **__: None
    )  # the real one starts its driver at once
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    assert [what.split(" is ")[0] for what in warned("auto")] == ["RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"]
    assert warned("local") == []
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert warned("auto") == []


def test_patterns_of_variables_reach_the_workers_launcher(tmp_path: Path) -> None:
    said: list[Launching] = []

    @click.command()
    @launching_options.launching_options
    def serve(launching: Launching) -> None:
        said.append(launching)

    serve.main(["--pass-env", "WANDB_*", "--pass-env", "PLACE"], standalone_mode=False)
    assert said[0].pass_env == ("WANDB_*", "PLACE")
    with pytest.raises(UsageError, match="neither a variable name"):
        serve.main(["--pass-env", "A=b"], standalone_mode=False)


def test_what_ray_would_show_is_not_put_into_its_runtime_environment(tmp_path: Path) -> None:
    given = tmp_path / "env.yaml"
    given.write_text("env_vars: {PLACE: here, OPENAI_API_KEY: hidden}")

    @click.command()
    @launching_options.launching_options
    def serve(launching: Launching) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as refused:
        serve.main(["--workers", "ray", "--ray-runtime-env", str(given)], standalone_mode=False)
    assert "--pass-env OPENAI_API_KEY" in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_workers_are_given_the_password_of_their_log_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    url = parsed_log_url("kafka://me@h:9092/?security=SASL_SSL&password_env=LOG_PASSWORD")
    assert backend_of(url).variables(url) == ("LOG_PASSWORD",)
    plain = parsed_log_url("kafka://h:9092/")
    assert backend_of(plain).variables(plain) == ()
