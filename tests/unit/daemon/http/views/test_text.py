"""Rollouts as text over HTTP: by the job's own tokenizer, with a reason for each missing part."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from synthetic.daemon.daemon_parts import DaemonParts, open_daemon
from synthetic.log.text_run import SyntheticRollout, TextRun, text_run, tokenizer_json

from rftd.daemon.text.texts import Texts, TokenizerFile, WantedText
from rftd.ops.errors import DataError
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.files.tokenizer_copies import copied_tokenizers
from rftd.streams.events.experience import AuxiliaryTurn, RunStep
from rftd.streams.events.experiment import ExperimentArchived
from rftd.streams.spec.spec import TrainerSpec

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script>\x00\x1b[2J\u202e\u2066{{7*7}}'\""


async def fetched(client: httpx.AsyncClient, path: str, **params: object) -> dict[str, Any]:
    answer = await client.get(f"/v1/experiments/texts/{path}", params={name: str(to) for name, to in params.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def written(parts: DaemonParts, run: TextRun) -> None:
    """Puts a run into the log and the tables."""
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()


async def ids_of(client: httpx.AsyncClient) -> list[str]:
    """The ids of all experiences, oldest first."""
    return [row["id"] for row in (await fetched(client, "experiences", order="oldest"))["items"]]


async def test_an_experience_has_messages_parts_truth_and_versions(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    judge = AuxiliaryTurn("judge", "ab" * 16, "well done", 9, 3, 5)
    tool = "<tool_response>5</tool_response>"
    pieces = (("call", True), (tool, False), ("think", False), ("5", True))
    run.group([SyntheticRollout(parts=pieces, auxiliary=(judge,), extracted="5")], failed=3)
    await written(parts, run)
    [id] = await ids_of(client)
    text = await fetched(client, f"experiences/{id}/text")
    assert text["messages"] == [{"role": "user", "content": "2+1=", "extra": ""}]
    assert text["truth"] == "3"
    assert text["task"]["row"] == 0
    rollout = text["rollout"]
    [turn] = rollout["turns"]
    assert (turn["prompt"], turn["bare_prompt"]) == ("2+3=", "2+3=")
    assert turn["answer"] == f"call{tool}think5"
    assert [(part["by"], part["text"]) for part in turn["parts"]] == [
        ("model", "call"),
        ("tool", f"{tool}think"),
        ("model", "5<eos>"),
    ]
    assert [(span["version"], span["start"], span["end"]) for span in rollout["spans"]] == [(2, 0, 43)]
    assert rollout["auxiliary"][0]["text"] == "well done"
    assert rollout["extracted"] == "5"
    assert (rollout["ids"], rollout["notes"], text["notes"]) == ([], [], [])


async def test_a_group_is_side_by_side_with_its_failures(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    group = run.group([SyntheticRollout(parts=((str(number), True),)) for number in range(3)], failed=1)
    await written(parts, run)
    whole = await fetched(client, f"groups/{group.hex[:12]}/text")
    assert whole["group"] == str(group)
    assert [item["turns"][0]["answer"] for item in whole["items"]] == ["0", "1", "2"]
    assert [(row["rollout"], row["code"]) for row in whole["failed"]] == [(3, "RFTD-WRK-003")]
    assert (whole["truth"], whole["next"]) == ("3", None)
    page = await fetched(client, f"groups/{group}/text", limit=2)
    assert (len(page["items"]), page["next"]) == (2, 2)
    second = await fetched(client, f"groups/{group}/text", limit=2, first=2)
    assert [item["turns"][0]["answer"] for item in second["items"]] == ["2"]
    assert (await client.get("/v1/experiments/texts/groups/00000000/text")).status_code == 404
    assert (await client.get("/v1/experiments/texts/groups/nothing/text")).status_code == 422


async def test_a_row_has_its_rollouts_by_weight_version(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    run.group([SyntheticRollout(parts=((f"early{number}", True),)) for number in range(4)])
    run.group([SyntheticRollout(parts=((f"other{number}", True),)) for number in range(4)])
    await written(parts, run)
    text = await fetched(client, "rows/0/text", limit=3)
    assert [item["turns"][0]["answer"] for item in text["items"]] == ["early0", "early1", "early2"]
    assert (text["truth"], text["next"]) == ("3", 3)
    assert (await fetched(client, "rows/1/text"))["items"][0]["turns"][0]["answer"] == "other0"
    assert (await client.get("/v1/experiments/texts/rows/7/text")).status_code == 404


async def test_each_step_of_a_rollout_is_a_turn_with_parts(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    steps = (RunStep(4, 3, 0.0), RunStep(3, 0, 1.0))
    run.group([SyntheticRollout(prompt="2+3=", parts=(("5!", True),), steps=steps)], failed=3)
    await written(parts, run)
    [id] = await ids_of(client)
    turns = (await fetched(client, f"experiences/{id}/text"))["rollout"]["turns"]
    assert [(turn["prompt"], turn["answer"]) for turn in turns] == [("2+3", "="), ("", "5!")]
    assert [(part["start"], part["end"]) for turn in turns for part in turn["parts"]] == [(0, 1), (1, 4)]
    window = await fetched(client, f"experiences/{id}/tokens")
    assert window["steps"] == [0, 0, 0, 0, 1, 1, 1]
    assert window["response"] == [False, False, False, True, True, True, True]


async def test_hostile_text_is_plain_json_and_cut(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json(characters=0x2100))
    run.group([SyntheticRollout(parts=((HOSTILE + "x" * 150_000, True),), extra=())], failed=3)
    await written(parts, run)
    [id] = await ids_of(client)
    answer = await client.get(f"/v1/experiments/texts/experiences/{id}/text", params={"chars": 100_000})
    assert answer.headers["content-type"].startswith("application/json")
    assert b"\x00" not in answer.content
    assert b"\x1b" not in answer.content
    rollout = answer.json()["rollout"]
    [turn] = rollout["turns"]
    assert turn["answer"].startswith(HOSTILE)
    assert (len(turn["answer"]), turn["chars"]) == (100_000, 150_000 + len(HOSTILE))
    assert "cut after 100000 characters" in rollout["notes"][0]


@pytest.mark.parametrize(
    ("content", "reason"), [("{", "tokenizer.json cannot be read"), ("changed", "does not match its digest")]
)
async def test_a_damaged_tokenizer_leaves_ids_and_a_reason(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path, content: str, reason: str
) -> None:
    run = text_run(tmp_path, tokenizer="{" if content == "{" else tokenizer_json())
    run.group([SyntheticRollout()], failed=3)
    await written(parts, run)
    if content == "changed":
        store = ArtifactStore(Path(run.job_dir) / "artifacts")
        store.path_of(run.tokenizers[1]).write_text(tokenizer_json(characters=70))
    [id] = await ids_of(client)
    text = await fetched(client, f"experiences/{id}/text")
    assert text["truth"] == "3"
    assert text["rollout"]["turns"] == []
    assert text["rollout"]["ids"] == [{"prompt": [50, 43, 51, 61], "answer": [53, 256]}]
    assert reason in text["rollout"]["notes"][0]
    window = await fetched(client, f"experiences/{id}/tokens")
    assert (window["ids"], window["texts"]) == ([50, 43, 51, 61, 53, 256], [])
    assert reason in window["notes"][0]


async def test_the_tokenizer_of_another_model_is_named(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json(characters=60))
    run.group([SyntheticRollout()], failed=3)
    await written(parts, run)
    [id] = await ids_of(client)
    rollout = (await fetched(client, f"experiences/{id}/text"))["rollout"]
    assert rollout["turns"][0]["prompt"] == "2+3"
    assert rollout["notes"] == ["2 token ids are not in the tokenizer, which is another model's: 61, 256"]


async def test_dropped_payloads_and_archived_files_are_reasons(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    run.group([SyntheticRollout(dropped=True), SyntheticRollout(), SyntheticRollout()], failed=1)
    await written(parts, run)
    dropped, kept, _ = await ids_of(client)
    rollout = (await fetched(client, f"experiences/{dropped}/text"))["rollout"]
    assert (rollout["turns"], rollout["ids"]) == ([], [])
    assert "were dropped from the log" in rollout["notes"][0]
    window = await fetched(client, f"experiences/{dropped}/tokens")
    assert (window["tokens"], window["ids"]) == (6, [])
    shutil.rmtree(run.job_dir)
    archived = ExperimentArchived(path="/archive", size_bytes=1, sha256="a" * 64)
    run.recorder.write(archived, run.id, role="controller")
    await parts.log.append(run.recorder.drafts[-1:])
    rollout = (await fetched(client, f"experiences/{kept}/text"))["rollout"]
    assert rollout["ids"]
    assert "archived or removed" in rollout["notes"][0]


async def test_without_a_copy_the_model_folder_serves_or_is_named(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path)
    run.group([SyntheticRollout()], failed=3)
    await written(parts, run)
    [id] = await ids_of(client)
    path = f"experiences/{id}/text"
    assert "does not exist, and no copy" in (await fetched(client, path))["rollout"]["notes"][0]
    (tmp_path / "model").mkdir()
    assert "no tokenizer.json: slow tokenizers" in (await fetched(client, path))["rollout"]["notes"][0]
    (tmp_path / "model" / "tokenizer.json").write_text(tokenizer_json())
    assert (await fetched(client, path))["rollout"]["turns"][0]["answer"] == "5"


async def test_a_changed_or_missing_dataset_is_a_note(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    run.group([SyntheticRollout()], failed=3)
    await written(parts, run)
    [id] = await ids_of(client)
    assert (await fetched(client, f"experiences/{id}/text"))["truth"] == "3"
    (tmp_path / "sums.jsonl").write_text('{"question": "2+3=", "answer": "6"}\n' * 3)
    changed = await fetched(client, f"experiences/{id}/text")
    assert changed["truth"] is None
    assert "has changed since the experiment was accepted" in changed["notes"][0]
    (tmp_path / "sums.jsonl").unlink()
    (tmp_path / "sums.jsonl").symlink_to("nowhere")


async def test_tokens_come_in_windows_with_their_columns(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    run.group([SyntheticRollout(parts=(("ab", True), ("c", False), ("d", True)))], failed=3)
    await written(parts, run)
    [id] = await ids_of(client)
    window = await fetched(client, f"experiences/{id}/tokens", first=3, n=4)
    assert (window["tokens"], window["prompt_tokens"], window["first"], window["next"]) == (9, 4, 3, 7)
    assert window["texts"] == ["=", "a", "b", "c"]
    assert window["response"] == [False, True, True, True]
    assert window["drawn"] == [False, True, True, False]
    assert window["mask"] == [0, 1, 1, 0]
    assert window["logprobs"] == [None, 0.0, -0.125, None]
    assert window["versions"] == [None, 2, 2, 2]
    last = await fetched(client, f"experiences/{id}/tokens", first=7, n=4)
    assert (last["texts"], last["next"]) == (["d", "<eos>"], None)
    beyond = await fetched(client, f"experiences/{id}/tokens", first=900)
    assert (beyond["ids"], beyond["texts"]) == ([], [])


@pytest.fixture
async def planned(tmp_path: Path, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    """A daemon with a run of three groups, of which the first two are planned; the log has no other run."""
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    for rewards in ((1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0)):
        run.group([SyntheticRollout(parts=(("ab", True), ("c", False)), reward=reward) for reward in rewards])
    run.plan(stage=1, take=8)
    async with open_daemon(tmp_path, run=run) as opened, opened.client() as client:
        yield client


async def test_tokens_have_the_advantage_of_their_step(planned: httpx.AsyncClient) -> None:
    first, *_, waiting = await ids_of(planned)
    window = await fetched(planned, f"experiences/{first}/tokens", first=3)
    assert window["notes"] == []
    assert window["advantages"] == [None, *[pytest.approx(0.75 / (0.5 + 1e-6))] * 2, None, pytest.approx(1.5, rel=1e-5)]
    unplanned = await fetched(planned, f"experiences/{waiting}/tokens")
    assert unplanned["advantages"] == []
    assert unplanned["notes"] == ["no advantages: no step was planned with this experience"]


async def test_advantages_of_single_tokens_need_the_trainer(
    client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path
) -> None:
    run = text_run(tmp_path, tokenizer=tokenizer_json(), advantage="ppo")
    run.group([SyntheticRollout()] * 4)
    run.plan(stage=1, take=4)
    await written(parts, run)
    id = (await ids_of(client))[0]
    window = await fetched(client, f"experiences/{id}/tokens")
    assert window["advantages"] == []
    assert "ppo computes each token's by the trainer's models" in window["notes"][0]


async def test_tokens_of_fake_engines_are_bytes(client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path) -> None:
    run = text_run(tmp_path)
    assert run.spec is not None
    fake = msgspec.structs.replace(run.spec.stages[1], trainer=TrainerSpec(engine="fake"))
    spec = msgspec.structs.replace(run.spec, stages=(run.spec.stages[0], fake))
    run = TextRun(type(run.recorder)(seed=3), name="texts", job_dir=run.job_dir, spec=spec)
    run.begin()
    run.warm_up()
    run.group([SyntheticRollout()], failed=3)
    await written(parts, run)
    [id] = await ids_of(client)
    assert (await fetched(client, f"experiences/{id}/text"))["rollout"]["turns"][0]["answer"] == "5"
    assert (await fetched(client, f"experiences/{id}/tokens"))["texts"] == ["2", "+", "3", "=", "5", ""]


async def test_a_tokenizer_beyond_its_memory_ends_no_other_request(tmp_path: Path) -> None:
    hungry, good = tmp_path / "hungry.json", tmp_path / "good.json"
    good.write_text(tokenizer_json())
    hungry.write_text(tokenizer_json().replace('"a":97', f'"{"a" * 5_000_000}":97'))
    texts = Texts(memory_bytes=600_000_000)
    many = WantedText(bytes([97, 0, 0, 0]) * 1000)
    with pytest.raises(DataError, match=r"too much time or memory|cannot decode"):
        await texts.decode(TokenizerFile(hungry), [many])
    assert (await texts.decode(TokenizerFile(good), [many])).texts[many].text == "a" * 1000


async def test_a_late_tokenizer_is_killed_and_refused_for_a_while(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never.json")  # a read of it waits for a writer
    texts = Texts(timeout_s=0.2)
    for _ in range(2):
        with pytest.raises(DataError, match=r"no answer within 0\.2 s"):
            await texts.decode(TokenizerFile(tmp_path / "never.json"), [WantedText(b"a\0\0\0")])


def test_copies_are_made_of_plain_tokenizers_alone(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    assert run.spec is not None
    assert copied_tokenizers(run.spec) == ()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text(tokenizer_json())
    digest = hashlib.sha256(tokenizer_json().encode()).hexdigest()
    assert copied_tokenizers(run.spec) == ("", digest)
    assert ArtifactStore(Path(run.job_dir) / "artifacts").has(digest)
