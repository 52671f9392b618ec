"""What goes wrong at the command line: exit statuses, texts, and never a bare traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from synthetic.daemon.command_line import Rftd, Served
from synthetic.daemon.gate import gate_at_work

from rftd.daemon.cli import cli
from rftd.daemon.cli.cli import OTHER_WORDS, VERBS, Verb, main
from rftd.ops import limits
from rftd.ops.errors import UnreachableError
from rftd.streams.log.topics import TASKS, TOPICS
from rftd.workers.devices.discovery import installed_packages

NEVER_LETS_GO = """
import sys, time

class Held:
    def __del__(self, wait=time.sleep):
        wait(600)

sys.held = Held()
"""
NEVER_RETURNS = "import atexit, time; atexit.register(time.sleep, 600)"
MODULE = ("-m", "rftd.daemon")


def script() -> tuple[str, str]:
    """What the script that installers make of the entry point runs."""
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["rftd"].partition(":")
    return "-c", f"import sys; from {module} import {function}; sys.exit({function}())"


@pytest.mark.parametrize(
    ("program", "library", "status"),
    [
        (MODULE, NEVER_LETS_GO, 2),
        (script(), NEVER_LETS_GO, 2),
        pytest.param(MODULE, NEVER_RETURNS, -signal.SIGALRM, marks=pytest.mark.slow),
    ],
    ids=["at_the_interpreters_end", "as_a_script", "before"],
)
def test_a_worker_ends_also_where_a_library_holds_it_up(
    tmp_path: Path, program: tuple[str, str], library: str, status: int
) -> None:
    """Libraries of inference engines do so once one of their processes was killed."""
    (tmp_path / "sitecustomize.py").write_text(library)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    worker = [sys.executable, "-P", *program, "worker", "explorer", "--experiment", "x", "--log", "unix:/no"]
    ended = subprocess.run(worker, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=60)
    assert ended.returncode == status
    assert b"--experiment" in ended.stderr


def test_usage_is_2_with_the_nearest_verb(rftd: Rftd) -> None:
    wrong = rftd("sumbit", "x")
    assert wrong.status == 2
    assert "Did you mean 'submit'?" in wrong.err
    assert rftd("get").status == 2
    assert rftd("ls", "--limit", "0").status == 2
    assert rftd("ls", "--state", "happy").status == 2
    assert "30s" in rftd("--timeout", "3x", "ls").err
    assert rftd("--server", "ftp://x", "ls").status == 2


@pytest.mark.parametrize(
    ("word", "verb"),
    [("stop", "cancel"), ("ps", "ls"), ("status", "get"), ("tail", "logs"), ("list", "ls"), ("Kill", "cancel")],
)
def test_words_of_other_programs_lead_to_the_verb_that_is_meant(rftd: Rftd, word: str, verb: str) -> None:
    wrong = rftd(word, "mine")
    assert wrong.status == 2
    assert f"Did you mean {verb!r}?" in wrong.err


def test_no_word_of_another_program_hides_a_verb() -> None:
    assert OTHER_WORDS.keys().isdisjoint(VERBS)
    assert set(OTHER_WORDS.values()) <= set(VERBS)


def test_roles_that_make_no_sense_are_refused_before_anything_is_opened(
    rftd: Rftd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RFTD_KAFKA", raising=False)
    alone = rftd("serve", "--roles", "explorer")
    assert alone.status == 2
    assert "--roles" in alone.err
    assert "--kafka" in alone.err
    both = rftd("serve", "--roles", "trainer", "--workers", "external")
    assert both.status == 2
    assert "trainers are not started with --workers external" in both.err
    assert rftd("serve", "--roles", "planner").status == 2
    for where in ("cloud", "explorer=ray", "explorer=ray,trainer=external", "trainer=local,trainer=local"):
        refused = rftd("serve", "--workers", where)
        assert refused.status == 2
        assert "as in explorer=ray,trainer=local" in " ".join(refused.err.split())
    assert rftd("serve", "--slots", "0").status == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif("ray" in installed_packages(), reason="Ray is installed here")
def test_workers_on_ray_are_refused_at_once_where_ray_is_not_installed(rftd: Rftd, tmp_path: Path) -> None:
    for where in ("ray", "explorer=ray,trainer=local"):
        refused = rftd("serve", "--workers", where)
        assert refused.status == 2
        for said in ("--workers", "Ray is not installed", "pip install 'rftd[ray]'", "make engines-cpu"):
            assert said in refused.err
    assert not list(tmp_path.iterdir())


def test_a_slot_that_no_explorer_has_is_refused(rftd: Rftd) -> None:
    """The same bound as that of engine_num, and of the partitions of `rftd.tasks`."""
    assert TOPICS[TASKS].partitions == limits.WORKER_SLOTS
    over = rftd("worker", "explorer", "--slot", str(limits.WORKER_SLOTS), "--log", "unix:/nowhere")
    assert over.status == 2
    assert "--slot" in over.err
    assert str(limits.WORKER_SLOTS - 1) in over.err
    last = rftd("worker", "explorer", "--slot", str(limits.WORKER_SLOTS - 1), "--experiment", "x", "--log", "unix:/no")
    assert last.status == 2
    assert "--slot" not in last.err
    assert "'x' is no id" in last.err


def test_not_found_is_3(rftd: Rftd) -> None:
    said = rftd("get", "nothing")
    assert said.status == 3
    assert said.out == ""
    assert said.err.startswith("error[RFTD-NOF-001] no experiment 'nothing'\n  fix: ")
    assert json.loads(rftd("get", "nothing", "--json").err)["exit"] == 3
    assert rftd("explain", "RFTD-XXX-001").status == 3


@pytest.mark.parametrize(
    "words",
    [
        ("-o", "json"),
        ("-ojson",),
        ("-qo", "json"),
        ("-qojson",),
        ("--output", "jsonl"),
        ("--output=json",),
        ("--json",),
    ],
)
def test_an_error_is_json_however_the_option_is_spelt(rftd: Rftd, words: tuple[str, ...]) -> None:
    for said in (rftd("get", "nothing", *words), rftd(*words, "get", "nothing")):
        assert said.out == ""
        assert json.loads(said.err)["errors"][0]["code"] == "RFTD-NOF-001"


@pytest.mark.parametrize(
    ("words", "where", "field", "what"),
    [
        (("get", "--json"), "rftd get", "NAME", "Missing argument 'NAME'"),
        (("-o", "json", "get"), "rftd get", "NAME", "Missing argument 'NAME'"),
        (("ls", "--bogus", "--json"), "rftd ls", "--bogus", "No such option '--bogus'"),
        (("ls", "--limit", "0", "--json"), "rftd ls", "--limit", "0 is not in the range"),
        (("events", "x", "-n", "0", "-ojson"), "rftd events", "--limit", "0 is not in the range"),
        (("sumbit", "--json"), "rftd", None, "Did you mean 'submit'?"),
        (("dlq", "ls", "--timeout", "3x", "--json"), "rftd dlq ls", "--timeout", "write 30s"),
        (("submit", "--label", "x", "f", "--json"), "rftd submit", None, "'x' is not KEY=VALUE"),
        (("config", "check", "--json"), "rftd config check", "FILE", "Missing argument 'FILE'"),
    ],
)
def test_a_wrong_command_line_is_json_too(
    rftd: Rftd, words: tuple[str, ...], where: str, field: str | None, what: str
) -> None:
    said = rftd(*words)
    assert (said.status, said.out) == (2, "")
    told = json.loads(said.err)
    [error] = told["errors"]
    assert (told["exit"], error["code"], error["where"], error["field"]) == (2, "RFTD-USE-001", where, field)
    assert what in error["what"]
    assert error["fix"] == f"see {where} --help"


@pytest.mark.parametrize("words", [("-o", "yaml"), ("--output=table",), ("-q",)])
def test_an_error_is_text_for_whoever_chose_no_json(rftd: Rftd, words: tuple[str, ...]) -> None:
    assert rftd("get", "json", *words).err.startswith("error[RFTD-NOF-001] no experiment 'json'")


def test_unreachable_is_4_and_says_how_to_start_one(rftd: Rftd) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = rftd("--server", url, "ls")
    assert said.status == 4
    assert f"--> {url}" in said.err
    assert "rftd serve" in said.err


def test_a_program_that_never_answers_is_6(rftd: Rftd) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        said = rftd("--server", f"http://127.0.0.1:{stranger.getsockname()[1]}", "--timeout", "200ms", "ls")
    assert said.status == 6
    assert "no answer within 0.2 s" in said.err


def test_another_program_on_the_port_is_4(rftd: Rftd) -> None:
    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404, "what?")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = rftd("--server", f"http://127.0.0.1:{server.server_port}", "ls")
        server.shutdown()
    assert said.status == 4
    assert "another program" in said.err


def test_version_says_why_no_daemon_says_its_release(rftd: Rftd, guarded: Served) -> None:
    error = UnreachableError("Kafka does not answer", fix="start it")
    with gate_at_work("log", error) as url:
        waits = rftd("version", "--server", url)
    assert waits.status == 0
    assert f"daemon: the daemon is not ready, its log is not there: Kafka does not answer, at {url}" in waits.out
    assert f"daemon: no valid token, at {guarded.url}" in rftd("version", "--server", guarded.url).out
    nobody = rftd("version", "--server", "http://127.0.0.1:1")
    assert "daemon: none answers at http://127.0.0.1:1" in nobody.out
    assert json.loads(rftd("version", "--server", url, "--json").out)["reason"] == f"none answers at {url}"


def test_the_daemon_of_the_folder_is_found(
    rftd: Rftd, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFTD_SERVER")
    (tmp_path / ".rftd").mkdir()
    (tmp_path / ".rftd" / "endpoint.json").write_text(json.dumps({"url": served.url, "pid": os.getpid()}))
    assert rftd("get", "small").status == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "endpoint.json").write_text("{")
    told = json.loads(rftd("version", "--data", "other", "--json").out)
    assert (told["server"], told["daemon"]) == (None, None)
    assert "no daemon serves from other" in told["reason"]


def _verb(error: BaseException) -> click.Command:
    @click.command("broken")
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ValueError("boom"), 70, "error[RFTD-BUG] ValueError: boom"),
        (ExceptionGroup("tasks", [ValueError("boom")]), 70, "rftd-bug-"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(4), 4, ""),
    ],
)
def test_bugs_leave_a_report_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: BaseException,
    status: int,
    text: str,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cli, "VERBS", {**VERBS, "broken": Verb(f"{__name__}:broken", "")})
    monkeypatch.setattr(sys.modules[__name__], "broken", _verb(error), raising=False)
    monkeypatch.setattr("importlib.import_module", lambda name: sys.modules[name])
    assert main(["broken"]) == status
    err = capsys.readouterr().err
    assert text in err
    assert "Traceback" not in err
    for report in tmp_path.glob("rftd-bug-*"):
        assert "ValueError: boom" in report.read_text()
        assert report.stat().st_mode & 0o077 == 0


def test_reports_hold_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rftd.daemon.cli.output.failure import write_report
    from rftd.ops.clock import ManualClock

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = write_report(ValueError("x"), ["submit", "-s", "model.api_key=sk-12345"], ManualClock())
    assert "sk-12345" not in report.read_text()
    assert "model.api_key=***" in report.read_text()


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom rftd.daemon.cli.cli import main\nmain(['--help'])\n"
        "heavy = {'pydantic', 'torch', 'rich', 'httpx', 'sqlalchemy', 'fastapi', 'msgspec', 'numpy', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_worker_imports_no_tables_and_no_client() -> None:
    """Workers are started by the hundred, and a third of what one imports would be SQLAlchemy."""
    code = (
        "import sys\nimport rftd.daemon.cli.verbs.worker\n"
        "import rftd.daemon.serve.external_worker, rftd.daemon.serve.reconnecting\n"
        "import rftd.workers.rollout.explorer, rftd.workers.training.trainer\n"
        "heavy = {'pydantic', 'torch', 'transformers', 'httpx', 'sqlalchemy', 'fastapi'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_ctrl_c_lets_go_of_a_watch_and_says_how_to_come_back(rftd: Rftd, experiment_file: Path, served: Served) -> None:
    assert rftd("submit", str(experiment_file), "-s", "name=going").status == 0
    # Whoever runs the tests in the background may have set the signal aside, which children inherit.
    heeded = (
        "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from rftd.daemon.cli.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-P", "-c", heeded, "--server", served.url, "watch", "going"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert "going  queued" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
        assert "detached; nothing was stopped. Again: rftd watch going" in watching.stderr.read()
    assert json.loads(rftd("get", "going", "--json").out)["experiment"]["summary"]["state"] == "queued"
