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
from rftd.daemon.doctor.daemon import check_daemon, check_endpoint
from rftd.daemon.doctor.engines import check_devices, check_engines
from rftd.daemon.doctor.machine import check_folder, check_identity, check_packages, check_python
from rftd.daemon.settings import Settings
from rftd.workers.devices.host import Device, Host


def test_a_fit_machine(rftd: Rftd) -> None:
    said = rftd("doctor", "--json")
    report = json.loads(said.out)
    found = {check["check"]: check for check in report["checks"]}
    assert {"python", "assertions", "identity", "packages", "folder", "disk", "daemon"} <= set(found)
    assert {"device", "engine torch", "engine vllm", "engine verl", "launcher ray"} <= set(found)
    assert found["daemon"]["status"] == "ok"
    assert said.status == 0
    assert report["ok"] is True
    assert "is ready" in rftd("doctor").out


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
    code = "import ops; from rftd.daemon.cli import main; raise SystemExit(main(['doctor', '--json']))"
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
    laptop = Host(devices=(cpu,), no_gpu="there is no nvidia-smi")
    assert [finding.what for finding in check_devices(laptop)] == [
        "cpu 0: 16 processors, 64.0 GiB",
        "no GPU (there is no nvidia-smi)",
    ]
    _, without, _ = check_engines(laptop)
    assert (without.status, without.what) == ("ok", "cannot generate: vLLM is not installed")
    assert "make engines-cpu" in without.fix
    bare = Host(devices=(cpu, gpu))
    assert check_devices(bare)[1].what == "cuda 1: NVIDIA L4, 24.0 GiB"
    _, missing, _ = check_engines(bare)
    assert missing.status == "warn", "a GPU that the faster engine could use"
    assert "rftd[vllm]" in missing.fix
    _, there, _ = check_engines(Host(devices=(cpu, gpu), packages={"vllm": "0.31.0"}))
    assert (there.status, there.what) == ("ok", "vllm 0.31.0 can generate on the GPUs")


def test_folders(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b")[0].status == "ok"
    assert not (tmp_path / "a").exists(), "nothing is left behind"
    file = tmp_path / "file"
    file.touch()
    assert check_folder(file)[0].status == "fail"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert check_folder(tmp_path)[0].status == "fail"


def test_a_daemon_that_is_gone_and_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        assert [finding.status for finding in check_daemon(Settings(server=url))] == ["warn", "ok"]
        stranger.listen()
        taken = check_daemon(Settings(server=url, timeout_s=0.2))
        assert [finding.status for finding in taken] == ["warn", "fail"]
    assert check_endpoint(tmp_path) == []
    (tmp_path / "endpoint.json").write_text(json.dumps({"url": "x", "pid": 2**22 + 1}))
    assert check_endpoint(tmp_path)[0].status == "warn"


def test_a_daemon_that_answers(served: Served) -> None:
    [finding] = check_daemon(Settings(server=served.url))
    assert finding.status == "ok"
    assert served.url in finding.what
