"""Every verb in real terminals of two sizes: no line is wider than the terminal, and no id is folded.

And every verb where no daemon answers, with a wrong token, and with the name of nobody: one error each.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import pytest
from synthetic.daemon import experiment_files
from synthetic.daemon.served_daemon import served_daemon
from synthetic.daemon.terminal import Drawn, Terminal
from synthetic.log.garbage import garbage
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.cli import cli
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.log.envelope import Draft
from rftd.streams.sqlite.log import SqliteLog

SIZES: Final = (Terminal(80, 24), Terminal(200, 50))
TOKEN: Final = "the-owners-token"
LINES: Final[Mapping[str, tuple[str, ...]]] = {
    "serve": (
        "serve --roles explorer",
        "serve --payloads until-trained --kafka {nobody}",
        "serve --drop-payloads-above 1GiB --kafka {nobody}",
        "serve --drop-payloads-after 1d --payloads until-ended",
    ),
    "open": ("open --print",),
    "page": ("page --print",),
    "studio": ("studio --print", "studio {file} --print", "studio {data}/nothing.yaml --print"),
    "token add": (
        "token add ann --role submit --expires 30d --data {empty}",
        "token add ann --role read --data {empty}",
    ),
    "token ls": ("token ls --data {empty}", "token ls --data {data}"),
    "token rm": ("token rm nobody --data {data}",),
    "token rotate": ("token rotate owner --data {data}", "token rotate nobody --data {data}"),
    "demo": ("demo --folder {data}", "demo --keep --open --folder {data}"),
    "stack up": ("stack up --kafka-port 99999",),
    "stack down": ("stack down",),
    "stack status": ("stack status",),
    "stack run": ("stack run mysql",),
    "submit": (
        "submit {file}",
        "submit {file} -s name=second --priority 3 --label who=me",
        "submit {file} --dry-run",
        "submit {file} -s buffer.batch_sizes=3",
        "submit {data}/nothing.yaml",
    ),
    "sweep": ("sweep {file} -s buffer.batch_size=2,3 --name swept", "sweep {file} --seeds 99", "sweep {file}"),
    "sweeps ls": ("sweeps ls",),
    "sweeps show": ("sweeps show swept", "sweeps show swept --runs", "sweeps show nothing"),
    "sweeps cancel": ("sweeps cancel swept",),
    "try": ("try {file}", "try {data}/nothing.yaml", "try small --step 1 --reward exact_match_reward"),
    "run": ("run -c {data}/nothing.yaml",),
    "fork": ("fork second --at-step 0 -s buffer.total_steps=9", "fork small --at-step 99"),
    "ls": ("ls", "ls --all", "ls --state happy"),
    "get": ("get small", "get second-fork-0", "get second"),
    "watch": ("watch small",),
    "steps": (
        "steps small",
        "steps small --points 4",
        "steps small --names",
        "steps small --metric loss --metric tokens",
        "steps second",
    ),
    "evals": (
        "evals small",
        "evals small --worst",
        "evals small --changed-since 3",
        "evals second",
        "evals small --row 99",
    ),
    "compare": ("compare small second", "compare small small", "compare second second-fork-0"),
    "report": ("report small --to {empty}/report.html", "report nothing"),
    "track add": (
        "track add small jsonl --into {empty}",
        "track add small mlflow --arg url=x",
        "track add small tensorboard",
    ),
    "logs": ("logs small -n 20", "logs small --level warning"),
    "tasks add": ("tasks add small {file}", "tasks add small {tasks}"),
    "tasks end": ("tasks end small",),
    "tasks ls": ("tasks ls small",),
    "timeline": ("timeline small", "timeline second --points 4", "timeline small --from never"),
    "checkpoints ls": ("checkpoints ls small", "checkpoints ls second --deleted"),
    "checkpoints download": ("checkpoints download small 99 --to {empty}/checkpoint",),
    "events": ("events small", "events small -n 3", "events small --all -n 4", "events small --type nonsense"),
    "experiences ls": ("experiences ls small", "experiences ls small --state retired", "experiences ls small -n 2"),
    "experiences show": ("experiences show small {short}", "experiences show small {experience} --tokens"),
    "experiences rows": ("experiences rows small --reward >5",),
    "experiences export": ("experiences export small -n 2 -o {empty}/rollouts-{size}.parquet",),
    "experiences prioritize": (
        "experiences prioritize second {short} 3",
        "experiences prioritize small {short} 3 --dry-run",
    ),
    "experiences give-up": (
        "experiences give-up second {short}",
        "experiences give-up small {short} --dry-run",
    ),
    "experiences lengths": ("experiences lengths small",),
    "experiences find": ("experiences find small cat --step 900",),
    "experiences drops": ("experiences drops small",),
    "why": ("why small", "why second", "why second-fork-0"),
    "lineage": ("lineage small/weights/3", "lineage {short} --depth 6", "lineage small/weights/3 --format dot"),
    "dlq ls": ("dlq ls --server {away} --data {data} --all", "dlq ls"),
    "dlq show": (
        "dlq show --server {away} --data {data} small/task/1.7",
        "dlq show --server {away} --data {data} {letter}",
        "dlq show small/task/1.0",
    ),
    "dlq retry": ("dlq retry small/task/1.0",),
    "dlq drop": ("dlq drop small/task/1.0 --reason none",),
    "pause": ("pause second", "pause small second"),
    "resume": ("resume second",),
    "cancel": ("cancel second", "cancel small"),
    "note": ("note small", "note second-fork-0 'too short' --star --label area=math", "note small --rollout nothing"),
    "prioritize": ("prioritize second-fork-0 7", "prioritize small 3"),
    "archive": ("archive small",),
    "restore": ("restore small",),
    "rm": ("rm small --yes",),
    "gc": ("gc --dry-run --data {data}", "gc --dry-run --data {empty}"),
    "convert": ("convert -c {checkpoints}", "convert -c {empty}"),
    "config check": ("config check {file}", "config check {file} -s model.model_paths=x"),
    "config show": ("config show {file}",),
    "config schema": ("config schema",),
    "import-verl": ("import-verl -- data.train_batch_size=8 nonsense.key=1",),
    "sim async": (
        "sim async --steps 3",
        "sim async --steps 3 --compare hard_bound:1 --policy hard_bound:3",
    ),
    "doctor": ("doctor --data {data}",),
    "verify": ("verify --data {data}", "verify --data {empty}"),
    "replay": ("replay nobody --data {data}",),
    "rebuild": ("rebuild --data {data}", "rebuild --data {data} --verify"),
    "backup": ("backup --data {data} {empty}/backup-{size}",),
    "export": ("export small --data {data} --to {empty}/{size}.rftd",),
    "import": ("import {empty}/{size}.rftd --data {empty}/{size}", "import {file} --data {empty}/other"),
    "explain": ("explain", "explain CFG-004", "explain CFG-999"),
    "completion": ("completion bash",),
    "version": ("version",),
    "worker explorer": ("worker explorer --experiment x --log unix:/no",),
    "worker trainer": ("worker trainer --experiment x --log unix:/no",),
    "worker tracker": ("worker tracker --kind jsonl --experiment x --log unix:/no",),
    "worker terms": ("worker terms --experiment x --log unix:/no --step 1 --into {empty}/terms",),
}
"""Lines that a user types, for each verb; the help of each is captured besides."""
FORMS: Final = ("--format dot", "config show", "config schema", "import-verl", "completion")
"""Files and programs on standard output: of these no line may be broken."""
OFFLINE: Final = (
    *("serve", "demo", "stack up", "stack down", "stack status", "stack run", "run", "try", "convert", "config check"),
    *("config show", "config schema", "import-verl", "sim async", "doctor", "verify", "replay", "rebuild", "export"),
    *("backup", "import", "explain", "completion", "version", "gc", "worker explorer", "worker tracker"),
    "worker terms",
    "track add",
    "worker trainer",
    *("token add", "token ls", "token rm", "token rotate"),
)
"""Verbs that ask no daemon."""
WORD: Final = re.compile(r"[^\s()\[\],:;'\"=/]+")
PIECE: Final = re.compile(r"(?=.*-)(?=.*[0-9a-f]{4})[0-9a-f-]{6,}")
"""Something that looks like an id, or like a part of one."""
ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every verb of the command line, hidden ones too."""
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in cli.VERBS if command is cli.rftd else command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*path, name))


def letters_of(run: SyntheticRun) -> list[Draft]:
    """Records of strangers, in the log of a run."""
    clock = SystemClock()
    return garbage(run.id, SystemIds(clock), clock)[:3]


@dataclass(frozen=True)
class World:
    """A daemon that wants a token, and a folder without one."""

    folder: Path
    url: str
    names: dict[str, str]

    def lines(self, verb: str, size: int, **other: str) -> list[list[str]]:
        names = {**self.names, "size": str(size), **other}
        return [shlex.split(line.format(**names)) for line in LINES[verb]]

    def environ(self, **other: str) -> dict[str, str]:
        unset = {name: value for name, value in os.environ.items() if not name.startswith("RFTD_")}
        return {**unset, "RFTD_SERVER": self.url, "RFTD_TOKEN": TOKEN, **other}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("a-folder-with-a-rather-long-name-as-people-have-them")
    data = DataFolder(folder / "data")
    run = SyntheticRun(Recorder(), job_dir=str(folder / "job")).write()
    run.explore(failed=4)

    async def fill() -> None:
        log = await SqliteLog.open(data.log)
        await log.append(run.recorder.drafts)
        await log.append(letters_of(run))
        await log.close()

    asyncio.run(fill())
    (folder / "exp.yaml").write_text(experiment_files.TEXT)
    (folder / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    for name in ("empty", "parts"):
        (folder / name).mkdir()
    broken = folder / "checkpoints" / "project" / "experiment" / "global_step_20" / "actor"
    broken.mkdir(parents=True)
    (broken / "model_world_size_2_rank_0.pt").write_bytes(b"not a checkpoint")
    with served_daemon(folder / "parts", token=TOKEN) as served:
        (folder / "parts" / "job" / "log").mkdir(parents=True)
        line = {"time": "2026-01-01T00:00:00.000000Z", "level": "warning", "event": "step.completed", "role": "trainer"}
        more = {f"a_figure_with_a_name_{number}": 0.123456789 for number in range(30)}
        path = folder / "parts" / "job" / "log" / "trainer.log"
        path.write_text(json.dumps(line | more) + "\nTraceback, of one \x1b[31mlong\x1b[0m word: " + "x" * 500 + "\n")
        experience = str(served.parts.run.late)
        names = {
            "data": str(folder / "data"),
            "empty": str(folder / "empty"),
            "file": str(folder / "exp.yaml"),
            "tasks": str(folder / "tasks.jsonl"),
            "checkpoints": str(folder / "checkpoints"),
            "experience": experience,
            "short": experience[:8],
            "letter": "rftd.tasks/0@0",
            "away": "http://127.0.0.1:9",
            "nobody": "127.0.0.1:9",
        }
        yield World(folder, served.url, names)


def test_every_verb_has_captures() -> None:
    assert sorted(LINES) == sorted(leaves(cli.rftd)), "a verb is captured by a line of LINES"


def for_people(each: Drawn) -> bool:
    """True of what is no file and no program."""
    line = " ".join(each.arguments)
    return "--help" in line or not any(form in line for form in FORMS)


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size.columns}x{size.rows}")
def captured(request: pytest.FixtureRequest, world: World) -> tuple[int, list[Drawn]]:
    """Each line of each verb, in the order of LINES, and each verb's help."""
    size: Terminal = request.param
    lines = [line for verb in LINES for line in world.lines(verb, size.columns)]
    lines += [[*verb.split(), "--help"] for verb in LINES if verb != "run"]
    lines += [["--help"], ["sumbit"], ["get"]]
    return size.columns, size.run(lines, cwd=world.folder, environ=world.environ())


def test_no_line_is_wider_than_the_terminal(captured: tuple[int, list[Drawn]]) -> None:
    columns, drawn = captured
    human = [each for each in drawn if for_people(each)]
    assert {" ".join(each.arguments): wide for each in human if (wide := each.wider_than(columns))} == {}


def test_no_id_is_folded(captured: tuple[int, list[Drawn]]) -> None:
    _, drawn = captured
    pieces = {
        (" ".join(each.arguments), word)
        for each in drawn
        if for_people(each)
        for line in each.lines
        for word in WORD.findall(line)
        if PIECE.fullmatch(word) and not ID.fullmatch(word) and not DATE.fullmatch(word)
    }
    assert pieces == set()


def test_no_verb_has_a_bug_or_draws_nothing(captured: tuple[int, list[Drawn]]) -> None:
    _, drawn = captured
    for each in drawn:
        assert "RFTD-BUG" not in each.text, each.text
        assert "\x1b" not in each.text.replace("\\x1b", "")
        assert each.text.strip(), each.arguments


def one_error(each: Drawn, code: str) -> None:
    """One error was drawn, and no more."""
    assert each.text.count("error[") == 1, each.text
    assert f"error[{code}]" in each.text, each.text
    assert "fix:" in each.text, each.text
    assert each.wider_than(SIZES[0].columns) == []


def asking(world: World, **other: str) -> list[list[str]]:
    """The first line of each verb that asks a daemon."""
    return [world.lines(verb, 80, **other)[0] for verb in LINES if verb not in OFFLINE]


def test_without_a_daemon_each_verb_says_so_once_and_in_json_if_asked(world: World) -> None:
    nowhere = {"RFTD_SERVER": "http://127.0.0.1:9", "RFTD_DATA": str(world.folder / "empty")}
    asked = [line for line in asking(world) if "--server" not in line]
    wrong = [[*verb.split(), "--json", "--no-such-option"] for verb in LINES if verb != "run"]
    lines = [*asked, *([*line, "--json"] for line in asked), *wrong]
    drawn = SIZES[0].run(lines, cwd=world.folder, environ=world.environ(**nowhere))
    for each in drawn[: len(asked)]:
        assert each.status == 4, each.text
        one_error(each, "RFTD-NET-001")
    for each in drawn[len(asked) :]:
        errors = [json.loads(line) for line in each.lines if line.startswith('{"exit"')]
        assert [error["exit"] for error in errors] == [each.status], each.text
        assert "error[" not in each.text
        assert "Usage:" not in each.text


def test_with_a_wrong_token_each_verb_says_so_once(world: World) -> None:
    lines = [line for line in asking(world) if "--server" not in line]
    for each in SIZES[0].run(lines, cwd=world.folder, environ=world.environ(RFTD_TOKEN="another")):
        assert each.status == 2, each.text
        one_error(each, "RFTD-API-001")
        assert "RFTD_TOKEN" in each.text


def test_a_name_of_nobody_is_one_error(world: World) -> None:
    named = [line for line in asking(world) if "small" in line or "second" in line]
    lines = [["nobody" if word in ("small", "second") else word for word in line] for line in named]
    for each in SIZES[0].run(lines, cwd=world.folder, environ=world.environ()):
        assert each.status == 3, each.text
        one_error(each, "RFTD-NOF-001")
