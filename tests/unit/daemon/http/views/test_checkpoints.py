"""Checkpoints over HTTP: the list, the files, and their bytes; never a byte from outside the run's folder."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts, open_daemon
from synthetic.log.recorder import Recorder
from synthetic.log.saved_run import CONTENT, NAME, SavedRun

from rftd.daemon.trust.quota import Quota
from rftd.daemon.trust.token_file import TokenFile
from rftd.streams.events.checkpoint import FileRef

pytestmark = pytest.mark.anyio

OWNER: Final = "the-owner"
PATH: Final = "/v1/experiments/saved/checkpoints"


@pytest.fixture
async def saved(tmp_path: Path, anyio_backend: str) -> AsyncIterator[DaemonParts]:
    run = SavedRun(Recorder(), name="saved", job_dir=str(tmp_path / "job"), faults=False).write()
    async with open_daemon(tmp_path, token=OWNER, run=run) as opened:
        yield opened


@pytest.fixture
async def owner(saved: DaemonParts) -> AsyncIterator[httpx.AsyncClient]:
    async with saved.client(Authorization=f"Bearer {OWNER}") as opened:
        yield opened


async def test_checkpoints_and_their_files_are_listed(owner: httpx.AsyncClient) -> None:
    page = (await owner.get(PATH)).json()
    assert [(row["step"], row["counts"], row["final"]) for row in page["items"]] == [(5, True, True), (2, True, True)]
    files = (await owner.get(f"{PATH}/5")).json()["files"]
    assert [(file["path"], file["size_bytes"]) for file in files] == [(NAME, len(CONTENT)), ("empty", 0)]
    for path in (f"{PATH}/4", f"{PATH}/4/file?path=x", f"{PATH}/5?generation=3"):
        answer = await owner.get(path)
        assert (answer.status_code, answer.json()["field"]) == (404, "step"), answer.text


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_file_comes_whole_with_its_digest(owner: httpx.AsyncClient, encoding: str) -> None:
    answer = await owner.get(f"{PATH}/5/file", params={"path": NAME}, headers={"Accept-Encoding": encoding})
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["content-length"] == str(len(CONTENT))
    digest = base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert answer.headers["content-disposition"] == 'attachment; filename="model.safetensors"'
    assert "content-encoding" not in answer.headers
    assert (await owner.get(f"{PATH}/5/file", params={"path": "empty"})).content == b""
    again = await owner.get(f"{PATH}/5/file", params={"path": NAME}, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await owner.head(f"{PATH}/5/file", params={"path": NAME})
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(CONTENT)))


@pytest.mark.parametrize(
    ("wanted", "span"),
    [
        ("bytes=0-9", (0, 10)),
        ("bytes=1048570-1048590", (1048570, 1048591)),
        ("bytes=2000000-", (2000000, None)),
        ("bytes=-7", (-7, None)),
        ("bytes=0-99999999999", (0, None)),
        ("bytes=-99999999999", (0, None)),
    ],
)
async def test_a_range_has_its_bytes(owner: httpx.AsyncClient, wanted: str, span: tuple[int, int | None]) -> None:
    answer = await owner.get(f"{PATH}/5/file", params={"path": NAME}, headers={"Range": wanted})
    assert (answer.status_code, answer.content) == (206, CONTENT[slice(*span)])
    assert answer.headers["content-range"].endswith(f"/{len(CONTENT)}")
    assert answer.headers["content-length"] == str(len(answer.content))


async def test_other_ranges_are_the_whole_file_or_refused(owner: httpx.AsyncClient) -> None:
    for wanted in ("lines=1-2", "bytes=5-2", "bytes=-", "bytes=1-2,5-6", "bytes=x-", "bytes=" + "9" * 40 + "-"):
        answer = await owner.get(f"{PATH}/5/file", params={"path": NAME}, headers={"Range": wanted})
        assert (answer.status_code, len(answer.content)) == (200, len(CONTENT)), wanted
    stale = {"Range": "bytes=0-9", "If-Range": '"of another file"'}
    assert (await owner.get(f"{PATH}/5/file", params={"path": NAME}, headers=stale)).status_code == 200
    for wanted in (f"bytes={len(CONTENT)}-", "bytes=-0"):
        answer = await owner.get(f"{PATH}/5/file", params={"path": NAME}, headers={"Range": wanted})
        assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(CONTENT)}"), wanted


@pytest.mark.parametrize(("role", "status"), [("read", 403), ("submit", 403), ("admin", 200)])
async def test_only_owner_and_admins_may_download(saved: DaemonParts, tmp_path: Path, role: str, status: int) -> None:
    token = TokenFile(tmp_path).add(role, role, created_ns=0, expires_ns=None, quota=Quota())
    async with saved.client(Authorization=f"Bearer {token}") as client:
        assert (await client.get(f"{PATH}/5/file", params={"path": NAME})).status_code == status
        assert (await client.get(f"{PATH}/5")).status_code == 200


HOSTILE: Final = (
    *("../../secret", "actor/../../../secret", "/etc/passwd", "actor", "", ".", "..", "actor//model.safetensors"),
    *("..%2f..%2fsecret", "actor\\..\\secret", "\x00", "\u202e", "x" * 1000, "file:///etc/passwd", "./actor"),
)


@pytest.mark.parametrize("path", HOSTILE)
async def test_a_path_that_the_checkpoint_does_not_name_is_not_found(
    owner: httpx.AsyncClient, tmp_path: Path, path: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    answer = await owner.get(f"{PATH}/5/file", params={"path": path})
    assert (answer.status_code, answer.json()["field"]) == (404, "path"), answer.text


@pytest.mark.parametrize("path", [path for path in HOSTILE if path not in ("", "actor", "x" * 1000)])
async def test_a_forged_record_opens_nothing_outside_its_folder(
    saved: DaemonParts, owner: httpx.AsyncClient, tmp_path: Path, path: str
) -> None:
    (tmp_path / "job" / "secret").write_text("secret")
    refs = (FileRef(path, 6, hashlib.sha256(b"secret").hexdigest()),)
    await committed(saved, files=refs)
    answer = await owner.get(f"{PATH}/5/file", params={"path": path})
    assert 400 <= answer.status_code < 600, answer.text
    assert answer.text != "secret"


@pytest.mark.parametrize(
    "place", ["global_step_5/../../elsewhere", "../elsewhere", "global_step_5/actor", "../global_step_5", "."]
)
async def test_a_forged_folder_is_refused(
    saved: DaemonParts, owner: httpx.AsyncClient, tmp_path: Path, place: str
) -> None:
    for outside in ("elsewhere", "global_step_5"):
        (tmp_path / outside / "actor").mkdir(parents=True)
        (tmp_path / outside / NAME).write_bytes(CONTENT)
    await committed(saved, path=f"{tmp_path / 'job'}/{place}")
    answer = await owner.get(f"{PATH}/5/file", params={"path": NAME})
    assert 400 <= answer.status_code < 600
    assert CONTENT[:100] not in answer.content


async def test_links_pipes_and_changed_files_are_refused(
    saved: DaemonParts, owner: httpx.AsyncClient, tmp_path: Path
) -> None:
    assert isinstance(saved.run, SavedRun)
    file = saved.run.folder / NAME
    outside = tmp_path / "outside"
    outside.write_bytes(CONTENT)

    async def status() -> int:
        answer = await owner.get(f"{PATH}/5/file", params={"path": NAME})
        return answer.status_code

    assert await status() == 200
    file.unlink()
    assert await status() == 404
    file.symlink_to(outside)
    assert await status() != 200
    file.unlink()
    os.mkfifo(file)
    assert await status() != 200
    file.unlink()
    file.write_bytes(CONTENT[:-1])
    assert await status() != 200
    file.unlink()
    (saved.run.folder / "actor").rmdir()
    (tmp_path / "actor").mkdir()
    (tmp_path / NAME).write_bytes(CONTENT)
    (saved.run.folder / "actor").symlink_to(tmp_path / "actor")
    assert await status() != 200


async def committed(saved: DaemonParts, **changes: Any) -> None:
    """The last checkpoint is committed again, by a later generation."""
    run = saved.run
    assert isinstance(run, SavedRun)
    written = len(run.recorder.drafts)
    run.commit(stage=1, final=True, generation=1, **changes)
    await saved.log.append(run.recorder.drafts[written:])
    await saved.projector.catch_up()
