"""The doctor: each finding with its fix, and a fit machine told from an unfit one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from synthetic.daemon.command_line import Rftd, Served

import rftd.ops as ours
from rftd.daemon.cli.settings import Settings
from rftd.daemon.observe.doctor.daemon import check_daemon, check_endpoint
from rftd.daemon.observe.doctor.engines import check_devices, check_engines, check_ray, check_tinker
from rftd.daemon.observe.doctor.folder import check_folder
from rftd.daemon.observe.doctor.machine import check_identity, check_packages, check_python
from rftd.daemon.observe.doctor.sandboxes import check_sandboxes
from rftd.ops.clock import SystemClock
from rftd.ops.errors import RolloutError
from rftd.workers.devices.host import Device, Host
from rftd.workers.workflows.sandbox.processes import ProcessSandbox
from rftd.workers.workflows.sandbox.sandbox import SandboxCommand, SandboxReport


def test_a_fit_machine(rftd: Rftd) -> None:
    said = rftd("doctor", "--json")
    report = json.loads(said.out)
    found = {check["check"]: check for check in report["checks"]}
    assert {"python", "assertions", "identity", "packages", "folder", "disk", "daemon"} <= set(found)
    assert {"device", "engine torch", "engine vllm", "engine verl", "kernels flash-attn", "strategy megatron"} <= set(
        found
    )
    assert {"launcher ray", "service tinker"} <= set(found)
    assert found["daemon"]["status"] == "ok"
    assert said.status == 0
    assert report["ok"] is True
    shown = rftd("doctor").out
    assert "is ready" in shown
    assert f"{len(report['checks'])} checks: none failed, " in shown


def test_interpreters() -> None:
    old, on = check_python((3, 10), optimised=False)
    assert old.status == "fail"
    assert "3.11" in old.fix
    assert on.status == "ok"
    assert [finding.status for finding in check_python((3, 12), optimised=True)] == ["ok", "fail"]


def test_a_room_imported_twice_is_found() -> None:
    double, stranger = ModuleType("ops"), ModuleType("ops")
    double.__path__ = list(ours.__path__)
    stranger.__path__ = ["/elsewhere/ops"]
    [bad] = check_identity({"ops": double, "rftd.ops": ours})
    assert bad.status == "fail"
    assert "ops" in bad.what
    assert "-P" in bad.fix
    assert check_identity({"ops": stranger, "rftd.ops": ours})[0].status == "ok"
    root = Path(next(iter(ours.__path__))).resolve().parent
    code = "import ops; from rftd.daemon.cli.cli import main; raise SystemExit(main(['doctor', '--json']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "imported twice: ops" in done.stdout, done.stderr


def test_packages() -> None:
    [finding] = check_packages(("json", "no_such_package_of_rftd"))
    assert finding.status == "fail"
    assert "no_such_package_of_rftd" in finding.what


def test_devices_and_engines() -> None:
    cpu = Device(kind="cpu", index=0, name="16 processors", memory_bytes=64 * 1024**3)
    gpu = Device(kind="cuda", index=1, name="NVIDIA L4", memory_bytes=24 * 1024**3, visible="1")
    laptop = Host(devices=(cpu,), no_gpu="nvidia-smi not found")
    assert [finding.what for finding in check_devices(laptop)] == [
        "cpu 0: 16 processors, 64.0 GiB",
        "no GPU (nvidia-smi not found)",
    ]
    _, without, *_ = check_engines(laptop)
    assert (without.status, without.what) == ("ok", "cannot generate: vLLM is not installed")
    assert "make engines-cpu" in without.fix
    bare = Host(devices=(cpu, gpu))
    assert check_devices(bare)[1].what == "cuda 1: NVIDIA L4, 24.0 GiB"
    _, missing, *_ = check_engines(bare)
    assert missing.status == "warn", "a GPU that the faster engine could use"
    assert "rftd[vllm]" in missing.fix
    _, there, *_ = check_engines(Host(devices=(cpu, gpu), packages={"vllm": "0.31.0"}))
    assert (there.status, there.what) == ("ok", "vllm 0.31.0 can generate on the GPUs")


@pytest.mark.parametrize(
    ("packages", "environ", "what"),
    [
        ({}, {}, "not installed (only needed for model.tinker); neither TINKER_API_KEY nor TRINITY_API_KEY is set"),
        ({}, {"TRINITY_API_KEY": "tml-1"}, "not installed (only needed for model.tinker); TRINITY_API_KEY is set"),
        (
            {"tinker": "0.38.0"},
            {"TINKER_API_KEY": " "},
            "tinker 0.38.0 cannot train or generate: neither TINKER_API_KEY",
        ),
        (
            {"tinker": "0.38.0"},
            {"TINKER_API_KEY": "tml-1"},
            "tinker 0.38.0 can train and generate; TINKER_API_KEY is set",
        ),
    ],
)
def test_the_service_and_the_variable_of_its_key_never_its_value(
    packages: dict[str, str], environ: dict[str, str], what: str
) -> None:
    [finding] = check_tinker(Host(packages=packages), environ)
    assert finding.what.startswith(what)
    assert "tml-1" not in f"{finding}"
    assert ("rftd[tinker]" in finding.fix) == ("tinker" not in packages)


def test_kernels_and_strategies_that_engines_would_use() -> None:
    gpu = Device(kind="cuda", index=0, name="NVIDIA L4", memory_bytes=24 * 1024**3, visible="0")

    def said(*devices: Device, **packages: str) -> dict[str, str]:
        host = Host(devices=devices, packages={name.replace("_", "-"): each for name, each in packages.items()})
        return {each.check: each.what for each in (*check_engines(host), *check_ray(host))}

    bare, full = said(gpu), said(gpu, flash_attn="2.8.3", megatron_core="0.16.1", mbridge="0.15.1", ray="2.60.0")
    assert bare["kernels flash-attn"].startswith("not installed (needed for verl's texts without padding")
    assert "no GPU for it" in said(flash_attn="2.8.3")["kernels flash-attn"]
    assert full["kernels flash-attn"].startswith("flash-attn 2.8.3 is there")
    assert bare["strategy megatron"].startswith("megatron-core and mbridge not installed")
    assert full["strategy megatron"].startswith("megatron-core 0.16.1 and mbridge 0.15.1 are there; texts are padded")
    assert bare["launcher ray"].startswith("not installed")
    assert full["launcher ray"] == "ray 2.60.0 can place workers: rftd serve --workers ray"


def test_what_ray_leaves_open_is_a_warning_where_a_cluster_is_named() -> None:
    closed = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    for address, environ, warned in (("auto", {}, 2), ("auto", closed, 0), ("", {}, 0)):
        findings = check_ray(Host(), address, environ)
        assert sum(finding.status == "warn" for finding in findings) == warned
        assert all(finding.fix for finding in findings if finding.status == "warn")


def test_folders(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b", SystemClock())[0].status == "ok"
    assert not (tmp_path / "a").exists(), "nothing is left behind"
    file = tmp_path / "file"
    file.touch()
    assert check_folder(file, SystemClock())[0].status == "fail"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert check_folder(tmp_path, SystemClock())[0].status == "fail"


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (RolloutError("no namespaces here", fix="allow them"), "sandboxes only limit their processes"),
        (OSError(28, "No space left on device"), "not tried: [Errno 28]"),
        (SandboxReport(isolation="namespaces", exit=-9, bound="time", wall_s=20.0), "at its bound of 20 s"),
        (SandboxReport(isolation="namespaces", exit=3, wall_s=0.1), "with exit code 3"),
    ],
)
def test_a_sandbox_that_cannot_run_is_a_warning_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, report: SandboxReport | Exception, words: str
) -> None:
    async def run(self: ProcessSandbox, command: SandboxCommand) -> SandboxReport:
        if isinstance(report, Exception):
            raise report
        return report

    monkeypatch.setattr(ProcessSandbox, "run", run)
    finding = next(finding for finding in check_sandboxes() if finding.check == "sandbox namespaces")
    assert finding.status == "warn"
    assert words in finding.what
    assert finding.fix


def test_a_daemon_that_is_gone_and_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        assert [finding.status for finding in check_daemon(Settings(server=url), {}, SystemClock())] == ["warn", "ok"]
        stranger.listen()
        (taken,) = check_daemon(Settings(server=url, timeout_s=0.2), {}, SystemClock())
        assert taken.status == "fail"
        assert "gives no answer" in taken.what
    assert check_endpoint(tmp_path) == []
    (tmp_path / "endpoint.json").write_text(json.dumps({"url": "x", "pid": 2**22 + 1}))
    assert check_endpoint(tmp_path)[0].status == "warn"


def test_a_daemon_that_answers(served: Served) -> None:
    found = {each.check: each for each in check_daemon(Settings(server=served.url), {}, SystemClock())}
    assert {each.status for each in found.values()} <= {"ok", "warn"}
    assert served.url in found["daemon"].what
    assert "not required" in found["token"].what
    assert found["monitor"].what.startswith(f"{served.url}/metrics has ")
