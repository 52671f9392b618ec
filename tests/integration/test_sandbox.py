"""A sandbox over real processes: what is forbidden is stopped and named, and others go on."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from synthetic.until import poll, until
from synthetic.worlds.bad_programs import BOUNDED, CHILDREN, SMALL, processes_of, run_python

from rftd.ops.errors import ConfigError, RolloutError
from rftd.workers.workflows.sandbox import processes
from rftd.workers.workflows.sandbox.processes import ProcessSandbox, WardenServer
from rftd.workers.workflows.sandbox.registry import open_sandbox
from rftd.workers.workflows.sandbox.run_folder import remove_left_folders, rollout_folder, run_folder
from rftd.workers.workflows.sandbox.sandbox import SandboxCommand

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ISOLATIONS = ("namespaces", "process")
every_isolation = pytest.mark.parametrize("isolation", ISOLATIONS)


def namespaces_refused() -> str:
    """Why this machine has no namespaces; empty if it has."""
    try:
        asyncio.run(run_python("pass"))
    except RolloutError as error:
        return error.what
    return ""


REFUSED = namespaces_refused()


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest) -> None:
    """Skips what needs namespaces where there are none, and a user of its own where the tests are not root's."""
    isolation = getattr(request.node, "callspec", None)
    name = isolation.params.get("isolation", "namespaces") if isolation is not None else "namespaces"
    if name == "namespaces" and REFUSED:
        pytest.skip(REFUSED)


@every_isolation
@pytest.mark.parametrize("attempt", BOUNDED)
async def test_a_program_beyond_a_bound_is_ended_and_the_bound_named(isolation: str, attempt: str) -> None:
    if isolation == "process" and os.geteuid() != 0 and attempt in ("fork bomb", "threads"):
        pytest.skip("the kernel counts the processes of the whole user")
    bound, program = BOUNDED[attempt]
    bounds = SMALL
    if bound in ("time", "cpu"):
        bounds = msgspec.structs.replace(SMALL, wall_s=0.5 if bound == "time" else 60.0, cpu_s=1.0)
    report, folder = await run_python(program, isolation=isolation, bounds=bounds)
    assert report.bound == bound, report
    assert report.processes <= SMALL.processes + 2
    with pytest.raises(RolloutError, match="was ended at its bound of"):
        report.check("the program", bounds)
    assert processes_of(folder) == []
    assert not folder.path.exists()


@every_isolation
async def test_children_left_behind_are_ended_and_counted(isolation: str) -> None:
    report, folder = await run_python(CHILDREN, isolation=isolation)
    assert (report.exit, report.bound) == (0, "") and report.left >= 3, report
    assert processes_of(folder) == []


@every_isolation
async def test_the_environment_is_what_was_given(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFTD_TOKEN", "canary-of-the-daemon")
    report, _ = await run_python("import os\nprint(sorted(os.environ))", isolation=isolation, environ={"MINE": "1"})
    names = ["HOME", "LANG", "MINE", "PATH", "RFTD_SANDBOX", "TMPDIR"]
    assert report.stdout.strip() == str(names)


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nprint(sys.stdin.read(), sys.argv, __name__)\nprint('café', file=sys.stderr)",
        "import os, sys\nprint(sorted(os.environ), os.getcwd(), sys.prefix)",
        "raise SystemExit(7)",
        "raise SystemExit('said')",
        "raise ValueError('raised')",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()",
        "import atexit\natexit.register(print, 'at the end')",
        "import rftd.workers.workflows.sandbox.warden",
        "import numpy\nprint(numpy.arange(3))",
    ],
)
async def test_a_warm_text_does_what_a_start_of_python_does(text: str) -> None:
    reports = []
    for warm in (False, True):
        async with rollout_folder() as folder:
            words = (sys.executable, "-Ic", text)
            command = SandboxCommand(words=words, folder=folder, input=b"in", environ={"MINE": "1"}, warm=warm)
            reports.append(await ProcessSandbox("namespaces").run(command))
    (cold, warm_report) = reports
    assert (warm_report.exit, warm_report.stdout) == (cold.exit, cold.stdout)
    assert warm_report.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]


async def test_a_warm_text_sees_no_variable_of_the_explorer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WARDENS", WardenServer())
    monkeypatch.setenv("LD_LIBRARY_PATH", "/canary")
    text = "print(open('/proc/self/environ').read())\nimport os\nprint(os.environ)"
    async with rollout_folder() as folder:
        command = SandboxCommand(words=(sys.executable, "-Ic", text), folder=folder, warm=True)
        report = await ProcessSandbox("namespaces").run(command)
    assert report.exit == 0 and "canary" not in report.stdout, report


async def test_a_killed_server_of_wardens_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WARDENS", server := WardenServer())
    for _ in range(2):
        report, _ = await run_python("print('alive')")
        assert report.stdout == "alive\n"
        assert server._process is not None
        server._process.kill()
        server._process.wait()


def beside(**environ: str) -> subprocess.Popen[bytes]:
    """A process that a sandbox must not touch."""
    return subprocess.Popen(["sleep", "600"], env=environ)


@every_isolation
async def test_variables_of_other_processes_cannot_be_read(isolation: str) -> None:
    if isolation == "process" and os.geteuid() != 0:
        pytest.skip("a plain process has the rights of its user")
    canary = "canary-of-another-process"
    other = beside(SECRET=canary)
    program = (
        "import glob\nfor path in glob.glob('/proc/*/environ'):\n    try:\n        print(open(path).read())\n"
        "    except OSError:\n        pass"
    )
    try:
        report, _ = await run_python(program, isolation=isolation)
    finally:
        other.kill()
        other.wait()
    assert report.exit == 0
    assert canary not in report.stdout + report.stderr


@every_isolation
async def test_no_signal_reaches_another_process(isolation: str) -> None:
    if isolation == "process" and os.geteuid() != 0:
        pytest.skip("a plain process has the rights of its user")
    other = beside()
    program = (
        f"import os, signal\nfor pid in ({other.pid}, {os.getpid()}, os.getppid()):\n    try:\n"
        "        os.kill(pid, signal.SIGTERM)\n        print('sent to', pid)\n    except OSError as error:\n"
        "        print(error.errno)"
    )
    try:
        report, _ = await run_python(program, isolation=isolation)
        assert other.poll() is None, report.stdout
    finally:
        other.kill()
        other.wait()


async def test_a_signal_to_all_ends_nothing_outside() -> None:
    other = beside()
    try:
        report, _ = await run_python("import os, signal\nos.kill(-1, signal.SIGKILL)\nprint('alone')")
        assert other.poll() is None
        assert "No such process" in report.stderr, "there is nobody but the program"
    finally:
        other.kill()
        other.wait()


async def test_neither_the_network_nor_a_socket_of_the_machine_can_be_reached(tmp_path: Path) -> None:
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as local:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        local.bind(
            path := f"{tempfile.gettempdir()}/rftd-test-{os.getpid()}.sock"
        )  # short: the name of a socket is bounded
        local.listen()
        os.chmod(path, 0o777)
        program = (
            "import socket\n"
            f"for address in (('127.0.0.1', {listener.getsockname()[1]}), ('192.0.2.1', 80), {path!r}):\n"
            "    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET\n    try:\n"
            "        with socket.socket(kind) as s:\n            s.settimeout(5)\n            s.connect(address)\n"
            "        print('connected to', address)\n    except OSError as error:\n        print(error)"
        )
        try:
            report, _ = await run_python(program)
        finally:
            os.unlink(path)
        assert report.exit == 0 and "connected" not in report.stdout, report
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_a_port_that_was_given_is_reached_and_no_other() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        program = (
            f"import socket\ns = socket.create_connection(('127.0.0.1', {port}))\ns.sendall(b'hello')\n"
            "s.shutdown(socket.SHUT_WR)\nprint(s.recv(100).decode())"
        )
        report, _ = await run_python(program, ports=(port,))
        thread.join()
    assert report.stdout.strip() == "HELLO", report


async def test_files_of_the_machine_can_neither_be_read_nor_changed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    program = (
        f"import os\nfor action in (lambda: print(open('{tmp_path}/secret').read()), lambda: os.listdir('/var'),\n"
        "               lambda: open('/usr/owned', 'w'), lambda: open('/etc/passwd', 'a'),\n"
        "               lambda: open('/owned', 'w'),\n"
        "               lambda: os.mkdir('/proc/1/cwd/owned')):\n    try:\n        action()\n        print('done')\n"
        "    except OSError as error:\n        print(error.strerror)"
    )
    report, _ = await run_python(program)
    assert report.exit == 0 and "done" not in report.stdout and "canary" not in report.stdout, report


@every_isolation
@pytest.mark.parametrize(
    ("made", "read"),
    [
        ("os.symlink('/etc/passwd', 'answer')", "answer"),
        ("os.symlink('/etc', 'folder')", "folder/passwd"),
        ("os.mkfifo('answer')", "answer"),
        ("os.mkdir('answer')", "answer"),
        ("open('answer', 'w').write('x' * 5000)", "answer"),
    ],
)
async def test_no_link_pipe_or_large_file_of_a_program_is_read(isolation: str, made: str, read: str) -> None:
    async with rollout_folder() as folder:
        command = SandboxCommand(words=(sys.executable, "-Ic", f"import os\n{made}"), folder=folder)
        report = await ProcessSandbox(isolation).run(command)
        assert report.exit == 0, report
        with pytest.raises(RolloutError):
            folder.read(read, 4096)
    assert not folder.path.exists()


async def test_a_program_among_bad_ones_goes_on() -> None:
    names = ("fork bomb", "memory", "10 GB in many files", "flood")
    good = run_python("import sys\nprint(sum(range(100)))")
    *bad, (report, _) = await asyncio.gather(*(run_python(BOUNDED[name][1]) for name in names), good)
    assert [ended.bound for ended, _ in bad] == [BOUNDED[name][0] for name in names]
    assert (report.exit, report.stdout.strip()) == (0, "4950")


@every_isolation
async def test_a_program_without_rights_for_its_folder_leaves_none_behind(isolation: str) -> None:
    _, folder = await run_python(
        "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0)", isolation=isolation
    )
    assert not folder.path.exists()


ANOTHER_USER = """
import asyncio
import sys
from pathlib import Path
from rftd.workers.workflows.sandbox.namespaces import drop_rights
from rftd.workers.workflows.sandbox.processes import ProcessSandbox
from rftd.workers.workflows.sandbox.run_folder import rollout_folder
from rftd.workers.workflows.sandbox.sandbox import SandboxCommand

async def main():
    async with rollout_folder(Path(sys.argv[1])) as folder:
        words = ("/bin/sh", "-c", "echo $$; mkdir -p a/b; chmod 0 a/b; chmod 0 a")
        command = SandboxCommand(words=words, folder=folder)
        report = await ProcessSandbox("namespaces").run(command)
        print(report.exit, report.stdout.split()[0], report.stderr)
    assert not folder.path.exists()

drop_rights(61183, reads_all=True)  # Python itself may lie in a folder of root's
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests of this file run as this user")
def test_another_user_than_root_has_namespaces_too() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        os.chown(home, 61183, 61183)
        program = [sys.executable, "-P", "-c", ANOTHER_USER, home]
        ended = subprocess.run(program, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.split()) == (0, ["0", "2"]), ended.stderr


@every_isolation
async def test_a_cancelled_run_ends_its_processes(isolation: str) -> None:
    async with rollout_folder() as folder:
        folder.write("program.py", b"import os, time\nos.fork()\nopen(f'begun{os.getpid()}', 'w')\ntime.sleep(600)")
        command = SandboxCommand(words=(sys.executable, "-I", "program.py"), folder=folder)
        running = asyncio.ensure_future(ProcessSandbox(isolation).run(command))
        await until(lambda: len(list((folder.path / "work").glob("begun*"))) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert processes_of(folder) == []


@every_isolation
@pytest.mark.parametrize("victim", ["explorer", "warden", "command"])
def test_a_kill_leaves_neither_process_nor_folder(isolation: str, victim: str, tmp_path: Path) -> None:
    explorer = subprocess.Popen(
        [sys.executable, "-P", "-c", STARTED, isolation], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert explorer.stdout is not None
    path = Path(explorer.stdout.readline().strip())
    poll(lambda: len(list(path.glob("work/begun*"))) == 2)
    (server,) = psutil.Process(explorer.pid).children()
    strike(victim, explorer, path.name)
    explorer.wait()
    poll(lambda: not server.is_running())
    poll(lambda: not marked(path.name))
    if victim == "explorer":
        poll(lambda: not path.exists())
    else:
        assert not path.exists()


def strike(victim: str, explorer: subprocess.Popen[str], name: str) -> None:
    """Kills one of the processes around a command."""
    if victim == "explorer":
        explorer.kill()
    elif victim == "warden":
        (server,) = psutil.Process(explorer.pid).children()
        (warden,) = server.children()
        warden.kill()
    else:
        marked(name)[0].kill()


def marked(name: str) -> list[object]:
    """Processes of the run of this name."""
    from synthetic.worlds.bad_programs import _marked

    return list(_marked(name))


STARTED = """
import asyncio, os, sys
from rftd.workers.workflows.sandbox.processes import ProcessSandbox
from rftd.workers.workflows.sandbox.run_folder import rollout_folder
from rftd.workers.workflows.sandbox.sandbox import SandboxCommand

async def main():
    async with rollout_folder() as folder:
        folder.write("program.py", b"import os, time\\nos.fork()\\nopen(f'begun{os.getpid()}', 'w')\\ntime.sleep(600)")
        print(folder.path, flush=True)
        command = SandboxCommand(words=(sys.executable, "-I", "program.py"), folder=folder)
        await ProcessSandbox(sys.argv[1]).run(command)

asyncio.run(main())
"""


def test_folders_of_dead_processes_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with run_folder(home) as folder:
        left = home / "run-left"
        (left / "work").mkdir(parents=True)
        remove_left_folders(home)
        assert folder.path.exists() and not left.exists()
    assert list(home.iterdir()) == []


def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(RolloutError, match="not this user's alone"), run_folder(home):
        pass


@pytest.mark.parametrize("name", ["../up", "/etc/owned", "a/../../up", "", "nul\0"])
def test_a_name_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    with run_folder(tmp_path / "home") as folder:
        with pytest.raises(RolloutError):
            folder.write(name, b"")
        with pytest.raises(RolloutError):
            folder.read(name)


def test_docker_needs_an_image_and_others_have_none() -> None:
    with pytest.raises(ConfigError, match="needs an image"):
        open_sandbox("docker")
    with pytest.raises(ConfigError, match="only Docker"):
        open_sandbox("process", "debian")


async def test_the_umask_of_a_worker_hides_nothing_from_the_command() -> None:
    program = (
        "import json, urllib.request\nopen('/dev/null', 'w').write('x')\nprint(len(open('/etc/passwd').read()) > 0)"
    )
    before = os.umask(0o077)
    try:
        report, _ = await run_python(program)
    finally:
        os.umask(before)
    assert (report.exit, report.stdout.strip()) == (0, "True"), report


async def test_what_cannot_be_started_is_named() -> None:
    async with rollout_folder() as folder:
        report = await ProcessSandbox().run(SandboxCommand(words=("no-such-program",), folder=folder))
    with pytest.raises(RolloutError, match="cannot start no-such-program"):
        report.check("the command", SMALL)
