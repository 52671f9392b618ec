"""What a submission that is not the owner's may name: only what the daemon's configuration allows."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import pytest
from synthetic.daemon.experiment_files import overlaid

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.naming import kind_of
from rftd.daemon.config.schema.section import Section
from rftd.daemon.run.supervisor.parts import Parts
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.trust.allowances import NOTHING_MORE, SAFE_ENV, Allowances
from rftd.daemon.trust.asker import OWNER, AccessRole, Asker, NotAllowedError
from rftd.daemon.trust.quota import Quota, QuotaError
from rftd.ops.clock import SystemClock
from rftd.ops.errors import RftdError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.declaration import NameKind
from rftd.workers.control.hold import NOT_ALLOWED
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.devices.host import ANY_HOST
from rftd.workers.hosts.local import LocalExecutor

pytestmark = pytest.mark.anyio

CLOCK = SystemClock()
IDS = SystemIds(CLOCK)
ANN = Asker("ann", AccessRole.SUBMIT)
FORM = {"prompt_type": "raw", "prompt_key": "question", "response_key": "answer"}
SECRET_ROW = '{"question": "canary-question", "answer": "canary-answer"}\n'
FILE: dict[str, Any] = {
    "project": "p",
    "name": "mine",
    "checkpoint_root_dir": "ROOT/c",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 4},
    "model": {"model_path": "ROOT/m", "max_model_len": 64, "max_prompt_tokens": 32},
    "buffer": {
        "batch_size": 2,
        "total_steps": 5,
        "explorer_input": {
            "taskset": {
                "path": "ROOT/t.jsonl",
                "format": FORM,
                "default_workflow_type": "simple_workflow",
                "default_reward_fn_type": "exact_match_reward",
            }
        },
    },
    "explorer": {"rollout_model": {"engine_type": "fake", "engine_num": 1}},
    "trainer": {"trainer_type": "fake"},
    "synchronizer": {"sync_method": "checkpoint"},
}


def taskset(**changes: Any) -> dict[str, Any]:
    return {"buffer": {"explorer_input": {"taskset": changes}}}


def judge(**changes: Any) -> dict[str, Any]:
    model = {"name": "judge", "engine_type": "external", "model_name": "x", **changes}
    return {"explorer": {"auxiliary_models": [model]}}


def variable(name: str, value: Any = "x") -> dict[str, Any]:
    return {"explorer": {"env_vars": {name: value}}}


def monitor(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"monitor": {"monitor_type": kind, "monitor_args": arguments}}


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "code by a variable of Python": (variable("PYTHONWARNINGS"), "explorer.env_vars.PYTHONWARNINGS", "allow_env"),
    "a browser": (variable("BROWSER"), "explorer.env_vars.BROWSER", "allow_env"),
    "a library": (variable("GCONV_PATH"), "explorer.env_vars.GCONV_PATH", "allow_env"),
    "a proxy": (variable("HTTPS_PROXY"), "explorer.env_vars.HTTPS_PROXY", "allow_env"),
    "a variable that nobody has heard of": (variable("QWX_7"), "explorer.env_vars.QWX_7", "allow_env"),
    "the daemon's token to a stranger": (
        judge(base_url="https://stranger.example/v1", api_key={"env": "RFTD_TOKEN"}),
        "explorer.auxiliary_models[0].api_key",
        "secrets",
    ),
    "an allowed key to another host": (
        judge(base_url="https://stranger.example/v1", api_key={"env": "GRANTED_KEY"}),
        "auxiliary_models[0].api_key",
        "secrets",
    ),
    "a listener on this machine": (
        judge(base_url="http://127.0.0.1:9/v1"),
        "explorer.auxiliary_models[0].base_url",
        "allow_urls",
    ),
    "this machine by its name": (
        judge(base_url="http://localhost:9/v1"),
        "explorer.auxiliary_models[0].base_url",
        "allow_urls",
    ),
    "the metadata of a cloud": (
        judge(base_url="http://169.254.169.254/v1"),
        "explorer.auxiliary_models[0].base_url",
        "allow_urls",
    ),
    "Tinker with the owner's key": (
        {"model": {"tinker": {"enable": True}}},
        "model.tinker.enable",
        "secrets",
    ),
    "a tracker with the owner's key": (monitor("wandb"), "monitor.monitor_type", "secrets"),
    "the token to a tracker": (monitor("wandb", api_key={"env": "RFTD_TOKEN"}), "monitor_args.api_key", "secrets"),
    "a key to a tracker's host": (monitor("wandb", api_key={"env": "GRANTED_KEY"}), "monitor_type", "secrets"),
    "a tracker on this machine": (monitor("mlflow"), "monitor.monitor_type", "allow_urls"),
    "a tracker's address": (monitor("wandb", base_url="http://10.0.0.1"), "monitor_args.base_url", "allow_args"),
    "checkpoints anywhere": ({"checkpoint_root_dir": "/etc/rftd"}, "checkpoint_root_dir", "roots"),
    "a dataset anywhere": (taskset(path="/etc/passwd"), "buffer.explorer_input.taskset.path", "roots"),
    "a dataset that is not there": (
        taskset(path="/nowhere/at/all.jsonl"),
        "buffer.explorer_input.taskset.path",
        "roots",
    ),
    "one of several paths of a dataset": (
        taskset(path=["ROOT/t.jsonl", "/etc/passwd"]),
        "buffer.explorer_input.taskset.path[1]",
        "roots",
    ),
    "a database anywhere": (
        taskset(storage_type="sql", name="t", path="sqlite:////etc/t.db"),
        "buffer.explorer_input.taskset.path",
        "roots",
    ),
    "a database by an encoded way up": (
        taskset(storage_type="sql", name="t", path="sqlite:///ROOT/%2e%2e/outside/t.db#/../../outside/t.db"),
        "buffer.explorer_input.taskset.path",
        "roots",
    ),
    "the daemon's own Postgres": (
        taskset(storage_type="sql", name="t", path="postgresql://127.0.0.1:5432/rftd"),
        "buffer.explorer_input.taskset.path",
        "allow_urls",
    ),
    "a variable with a database": (
        taskset(storage_type="sql", name="t", path={"env": "RFTD_POSTGRES"}),
        "buffer.explorer_input.taskset.path",
        "secrets",
    ),
    "a dataset through a link": (taskset(path="ROOT/link.jsonl"), "buffer.explorer_input.taskset.path", "roots"),
    "a link within a folder": (taskset(path="ROOT/linked"), "buffer.explorer_input.taskset.path", "roots"),
    "a way up": (taskset(path="ROOT/../outside/t.jsonl"), "buffer.explorer_input.taskset.path", "roots"),
    "a way up below a folder": (taskset(path="ROOT/m", split="../../outside/t"), "taskset.split", "roots"),
    "a pipe": (taskset(path="ROOT/pipe.jsonl"), "buffer.explorer_input.taskset.path", "roots"),
    "a model anywhere": ({"model": {"model_path": "/etc"}}, "model.model_path", "roots"),
    "a model of a relative name": ({"model": {"model_path": "owner/name"}}, "model.model_path", "roots"),
    "shared memory anywhere": ({"synchronizer": {"memory_dir": "/etc"}}, "synchronizer.memory_dir", "roots"),
    "a class of a package": (taskset(default_workflow_type="lab.Flow"), "taskset.default_workflow_type", "allow_code"),
    "code of a model": ({"model": {"trust_remote_code": True}}, "model.trust_remote_code", "allow_code"),
    "an argument of an engine": (
        {"explorer": {"rollout_model": {"extra_engine_args": {"worker_extension_cls": "os.system"}}}},
        "explorer.rollout_model.extra_engine_args.worker_extension_cls",
        "allow_args",
    ),
    "code by an argument of an engine": (
        {"explorer": {"rollout_model": {"extra_engine_args": {"trust_remote_code": True}}}},
        "explorer.rollout_model.extra_engine_args.trust_remote_code",
        "allow_args",
    ),
    "a path in an argument": (
        {"algorithm": {"policy_loss_fn_args": {"file": "/etc/passwd"}}},
        "algorithm.policy_loss_fn_args.file",
        "allow_args",
    ),
    "the network": (
        {"mode": "serve", "explorer": {"listen_address": "0.0.0.0"}},
        "explorer.listen_address",
        "allow_urls",
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a dataset, and a folder beside it that is none of a submitter's business."""
    root = tmp_path.resolve() / "root"
    outside = tmp_path.resolve() / "outside"
    for folder in (root, outside, root / "m", root / "linked"):
        folder.mkdir()
    rows = [json.dumps({"question": f"{a}+1=", "answer": str(a + 1)}) for a in range(8)]
    (root / "t.jsonl").write_text("\n".join(rows))
    (outside / "t.jsonl").write_text(SECRET_ROW)
    (root / "link.jsonl").symlink_to(outside / "t.jsonl")
    (root / "linked" / "train.jsonl").symlink_to(outside / "t.jsonl")
    os.mkfifo(root / "pipe.jsonl")
    return root


def allowances(root: Path, **more: Any) -> Allowances:
    return Allowances(roots=(str(root),), secrets={"GRANTED_KEY": ("api.example.com",)}, **more)


def supervisor(log: MemoryLog, allowed: Allowances) -> Supervisor:
    nobody = LocalExecutor("unix:nowhere", host=lambda: ANY_HOST)
    return Supervisor(log, nobody, owner=IDS.new(), clock=CLOCK, ids=IDS, logger=logger(), allowances=allowed)


def file_of(root: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The whole file, with these changes."""
    config: dict[str, Any] = json.loads(json.dumps(overlaid(FILE, changes)).replace("ROOT", str(root)))
    return config


@pytest.mark.parametrize("case", REFUSED)
async def test_a_stranger_names_nothing_that_is_not_allowed(case: str, root: Path) -> None:
    changes, field, line = REFUSED[case]
    log = MemoryLog()
    commands = supervisor(log, allowances(root)).for_asker(ANN)
    before = sorted(str(path) for path in root.parent.rglob("*"))
    heads = await log.heads()
    with pytest.raises(RftdError) as caught:
        await commands.submit(file_of(root, changes), request_id=IDS.new())
    error = caught.value
    assert isinstance(error, NotAllowedError)
    assert (error.field or "").endswith(field.removeprefix("explorer.")) or field in (error.field or "")
    assert f"`{line}: " in (error.fix or "")
    assert "canary" not in f"{error.what} {error.fix} {error.where}"
    assert await log.heads() == heads
    assert sorted(str(path) for path in root.parent.rglob("*")) == before


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard", "console"])
async def test_a_stranger_may_have_trackers_that_write_files(kind: str, root: Path) -> None:
    commands = supervisor(MemoryLog(), allowances(root)).for_asker(ANN)
    spec = await commands.check(file_of(root, monitor(kind)))
    assert [tracker.kind for tracker in spec.trackers] == [kind]


async def test_a_stranger_uses_the_key_of_a_tracker_that_is_allowed_for_its_host(root: Path) -> None:
    allowed = Allowances(roots=(str(root),), secrets={"WANDB_API_KEY": ("api.wandb.ai",)})
    commands = supervisor(MemoryLog(), allowed).for_asker(ANN)
    spec = await commands.check(file_of(root, monitor("wandb")))
    assert [tracker.kind for tracker in spec.trackers] == ["wandb"]


async def test_the_owner_names_what_his_user_may(root: Path) -> None:
    elsewhere = root.parent / "outside" / "t.jsonl"
    commands = supervisor(MemoryLog(), NOTHING_MORE)
    accepted = await commands.submit(file_of(root, taskset(path=str(elsewhere))), request_id=IDS.new())
    entry = (await commands.known()).entries[accepted.experiment]
    assert (entry.spine.submitted_by, entry.spine.submitted_as, entry.spine.grants) == ("owner", "owner", ())
    assert not entry.spec.reach.restricted


@pytest.mark.parametrize("asker", [OWNER, ANN])
async def test_a_table_is_kept_below_the_checkpoint_root(root: Path, asker: Asker) -> None:
    with sqlite3.connect(root / "t.db") as connection:
        connection.execute("CREATE TABLE sums (id INTEGER PRIMARY KEY, question TEXT, answer TEXT)")
        connection.execute("INSERT INTO sums VALUES (2, '1+1=', '2'), (1, '0+1=', '1')")
    commands = supervisor(MemoryLog(), allowances(root)).for_asker(asker)
    config = file_of(root, taskset(storage_type="sql", name="sums", path="sqlite:///ROOT/t.db"))
    checked = await commands.check(config)
    assert any("table sums has 2 rows" in text for text in checked.warnings)
    assert not (root / "c").exists(), "a dry run keeps nothing"
    accepted = await commands.submit(config, request_id=IDS.new())
    entry = (await commands.known()).entries[accepted.experiment]
    own = entry.spec.stages[0].taskset
    assert own is not None
    assert Path(own.path).parent == root / "c" / ".tables"
    with Taskset.open(own) as opened:
        assert (opened.digest, [row["id"] for row in opened.rows()]) == (own.digest or opened.digest, [1, 2])
    assert "sqlite" not in json.dumps(entry.spec.config)


async def test_what_is_missing_and_what_is_forbidden_read_alike(root: Path) -> None:
    commands = supervisor(MemoryLog(), allowances(root)).for_asker(ANN)
    texts = set()
    for path in ("/etc/passwd", "/nowhere/at/all.jsonl", "/home/somebody/.ssh/id_rsa"):
        with pytest.raises(NotAllowedError) as caught:
            await commands.submit(file_of(root, taskset(path=path)), request_id=IDS.new())
        texts.add((caught.value.what, caught.value.fix, caught.value.where))
    assert len(texts) == 1


async def test_a_verdict_is_recorded_and_a_withdrawn_permission_pauses(root: Path) -> None:
    commands = supervisor(MemoryLog(), allowances(root)).for_asker(ANN)
    config = file_of(root, variable(SAFE_ENV[0], "false"))
    accepted = await commands.submit(config, request_id=IDS.new())
    entry = (await commands.known()).entries[accepted.experiment]
    assert (entry.spine.submitted_by, entry.spine.submitted_as) == ("ann", "submit")
    assert {grant.kind for grant in entry.spine.grants} == {"roots", "allow_env"}
    assert entry.spec.reach.restricted

    async def obstacle(allowed: Allowances) -> str | None:
        missing = await Parts(CLOCK, allowed, starts=True).missing(entry.spec, 0, {}, entry.spine.grants)
        return None if missing is None else f"{missing.cause} {missing.fix}"

    assert await obstacle(allowances(root)) is None
    withdrawn = await obstacle(msgspec.structs.replace(allowances(root), allow_env=()))
    assert withdrawn is not None and withdrawn.startswith(NOT_ALLOWED) and "`allow_env`" in withdrawn
    assert "`roots`" in str(await obstacle(NOTHING_MORE))
    # What was a file when it was accepted leads out of the root by now.
    (root / "t.jsonl").unlink()
    (root / "t.jsonl").symlink_to(root.parent / "outside" / "t.jsonl")
    assert "`roots`" in str(await obstacle(allowances(root)))


async def test_a_root_that_is_a_link_allows_nothing(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    commands = supervisor(MemoryLog(), allowances(link)).for_asker(ANN)
    with pytest.raises(NotAllowedError):
        await commands.submit(file_of(link, {}), request_id=IDS.new())
    assert list(allowances(link).faults()) == [("roots", str(link))]


REWARD = "def short(response, truth):\n    return -float(len(response))\n"


def with_reward(root: Path, *, workflow: bool = False) -> dict[str, Any]:
    field = "default_workflow_type" if workflow else "default_reward_fn_type"
    return file_of(root, {"sources": {"mine.py": REWARD}, **taskset(**{field: "mine.py:short"})})


async def test_a_reward_of_an_allowed_digest_is_accepted_and_a_workflow_is_not(root: Path) -> None:
    digest = hashlib.sha256(REWARD.encode()).hexdigest()
    allowed = allowances(root, allow_sources=(digest,))
    commands = supervisor(MemoryLog(), allowed).for_asker(ANN)
    accepted = await commands.submit(with_reward(root), request_id=IDS.new())
    entry = (await commands.known()).entries[accepted.experiment]
    assert ("allow_sources", digest) in {(grant.kind, grant.value) for grant in entry.spine.grants}
    assert entry.spec.reach.restricted, "a worker runs the reward in a sandbox"
    with pytest.raises(NotAllowedError, match="workflows as code"):
        await commands.submit(with_reward(root, workflow=True) | {"name": "second"}, request_id=IDS.new())
    missing = await Parts(CLOCK, allowances(root), starts=True).missing(entry.spec, 0, {}, entry.spine.grants)
    assert missing is not None and missing.cause == NOT_ALLOWED and "`allow_sources`" in missing.fix


@pytest.mark.parametrize(
    ("text", "changes", "refused"),
    [
        ("def loss(advantages): ...", {"algorithm": {"policy_loss_fn": "mine.py:loss"}}, "losses as code"),
        (
            "async def solve(task, base_url, api_key): ...",
            taskset(default_workflow_type="agent_program_workflow", workflow_args={"agent": "mine.py:solve"}),
            "agent programs as code",
        ),
    ],
)
async def test_a_loss_or_agent_of_a_stranger_is_refused_even_by_an_allowed_digest(
    text: str, changes: dict[str, Any], refused: str, root: Path
) -> None:
    allowed = allowances(root, allow_sources=(hashlib.sha256(text.encode()).hexdigest(),))
    commands = supervisor(MemoryLog(), allowed).for_asker(ANN)
    config = file_of(root, changes) | {"sources": {"mine.py": text}}
    with pytest.raises(NotAllowedError, match=refused):
        await commands.submit(config, request_id=IDS.new())


@pytest.mark.parametrize(
    ("pattern", "arguments", "refused"),
    [
        ("node agent.mjs", {}, ""),
        ("node *", {}, ""),
        ("node agent.mj", {}, "agent_command"),
        ("node agent.mjs", {"network": True}, "network"),
        ("node agent.mjs", {"environ": {"PATH": "/evil"}}, "environ"),
        ("node agent.mjs", {"readable": ["/"]}, "readable"),
        ("node agent.mjs", {"isolation": "process"}, "isolation"),
        ("node agent.mjs", {"agent_folder": "/etc"}, "agent_folder"),
        ("node agent.mjs", {"agent_folder": "ROOT/m"}, ""),
        ("* as_react_workflow", {}, ""),
        (f"{sys.executable} as_react_workflow", {}, ""),
        ("python as_react_workflow", {}, "python"),
        ("* as_react_workflow", {"network": True}, "network"),
        ("* as_react_workflow", {"readable": ["/"]}, "readable"),
    ],
)
async def test_a_command_of_an_agent_is_allowed_by_its_line(
    pattern: str, arguments: dict[str, Any], refused: str, root: Path
) -> None:
    commands = supervisor(MemoryLog(), allowances(root, allow_commands=(pattern,))).for_asker(ANN)
    workflow = "as_react_workflow" if pattern.endswith("as_react_workflow") else "agent_command_workflow"
    agent = {"python": sys.executable} if workflow == "as_react_workflow" else {"agent_command": ["node", "agent.mjs"]}
    config = file_of(root, taskset(default_workflow_type=workflow, workflow_args=agent | arguments))
    if not refused:
        await commands.check(config)
        return
    with pytest.raises(NotAllowedError) as caught:
        await commands.check(config)
    assert refused in (caught.value.field or "")


def move_away(root: Path, *, leave_link: bool) -> None:
    moved = root.rename(root.parent / "moved")
    if leave_link:
        root.symlink_to(moved)


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_root_that_vanished_allows_nothing_even_if_a_link_is_there_now(root: Path, *, comes_back: bool) -> None:
    commands = supervisor(MemoryLog(), allowances(root)).for_asker(ANN)
    config = file_of(root, {})
    accepted = await commands.submit(config, request_id=IDS.new())
    entry = (await commands.known()).entries[accepted.experiment]
    move_away(root, leave_link=comes_back)
    with pytest.raises(NotAllowedError) as caught:
        await commands.submit({**config, "name": "second"}, request_id=IDS.new())
    assert "`roots: " in (caught.value.fix or "")
    missing = await Parts(CLOCK, allowances(root), starts=True).missing(entry.spec, 0, {}, entry.spine.grants)
    assert missing is not None and missing.cause == NOT_ALLOWED
    assert list(allowances(root).faults()) == [("roots", str(root))]


async def test_a_token_has_so_many_experiments_in_the_queue_and_no_more(root: Path) -> None:
    everybody = supervisor(log := MemoryLog(), allowances(root))
    ann = everybody.for_asker(Asker("ann", AccessRole.SUBMIT, Quota(queued=1)))
    accepted = await ann.submit(file_of(root, {"name": "first"}), request_id=(first := IDS.new()))
    heads = await log.heads()
    with pytest.raises(QuotaError, match="queue"):
        await ann.submit(file_of(root, {"name": "second"}), request_id=IDS.new())
    assert await log.heads() == heads
    again = await ann.submit(file_of(root, {"name": "first"}), request_id=first)
    assert again.experiment == accepted.experiment, "a submission that is repeated is no second one"
    bob = everybody.for_asker(Asker("bob", AccessRole.SUBMIT, Quota(queued=1)))
    await bob.submit(file_of(root, {"name": "third"}), request_id=IDS.new())
    assert await everybody.queued_by() == {"ann": 1, "bob": 1}
    await ann.cancel(accepted.experiment, reason="", request_id=IDS.new())
    await ann.submit(file_of(root, {"name": "fourth"}), request_id=IDS.new())


async def test_nobody_gives_commands_about_somebody_elses_experiment(root: Path) -> None:
    daemon = supervisor(MemoryLog(), allowances(root))
    accepted = await daemon.for_asker(ANN).submit(file_of(root, {}), request_id=IDS.new())
    bob = daemon.for_asker(Asker("bob", AccessRole.SUBMIT))
    for command in (bob.pause, bob.cancel, bob.resume):
        with pytest.raises(NotAllowedError):
            await command(accepted.experiment, reason="", request_id=IDS.new())
    for place in ("/tmp/anywhere.rftd", "../up", "a/b", "-rf"):
        with pytest.raises(NotAllowedError):
            await daemon.for_asker(ANN).archive(accepted.experiment, to=place, request_id=IDS.new())
    admin = daemon.for_asker(Asker("eve", AccessRole.ADMIN))
    done = await admin.cancel(accepted.experiment, reason="", request_id=IDS.new())
    assert done.event


def free_fields(section: type[Section], seen: set[type]) -> Iterator[tuple[str, NameKind | None]]:
    """Every field of the file that takes free text or a free mapping, with the kind that it is marked with."""
    if section in seen:
        return
    seen.add(section)
    for name, field in section.model_fields.items():
        inner = list(sections_in(field.annotation))
        if inner:
            for below in inner:
                yield from free_fields(below, seen)
        elif is_free(field.annotation):
            yield f"{section.__name__}.{name}", kind_of(field)


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        if not isinstance(part, str):
            yield from sections_in(part)


def is_free(annotation: Any) -> bool:
    if annotation is str or annotation is Any:
        return True
    origin = get_origin(annotation)
    if origin is Literal:
        return False
    if origin is Annotated:
        return is_free(get_args(annotation)[0])
    return origin is dict or any(is_free(part) for part in get_args(annotation) if not isinstance(part, str))


GRAMMAR = {f"{section}.{field}" for section in ("Experiment",) for field in ("project", "group", "name")} | {
    "Taskset.name",
    "AuxiliaryBuffer.name",
    "ExperienceBuffer.name",
    "Stage.stage_name",
}
"""Names with a grammar of their own."""


def test_every_field_of_free_text_says_what_it_names() -> None:
    unmarked = {name for name, kind in free_fields(Experiment, set()) if kind is None}
    assert unmarked <= GRAMMAR, sorted(unmarked - GRAMMAR)
    assert OWNER.is_owner
