"""Hostile names, ids, steps, generations, paths and ranges at the routes of checkpoints: a clear refusal, no bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts, open_daemon
from synthetic.log.recorder import Recorder
from synthetic.log.saved_run import CONTENT, NAME, SavedRun
from synthetic.worlds.adversary import CANARY

from rftd.daemon.trust.quota import Quota
from rftd.daemon.trust.token_file import TokenFile

pytestmark = pytest.mark.anyio

OWNER: Final = "the-owner"
ROLES: Final = ("read", "submit")
NAMES: Final = (
    *(
        "..",
        ".",
        "../saved",
        "saved/..",
        "saved\x00",
        "\x00",
        "\u202esaved",
        "saved\n",
        " saved",
        "%2e%2e",
        "saved;",
        "*",
    ),
    *(
        "' OR 1=1 --",
        "saved'--",
        "${HOME}",
        "{canary}",
        "<img src=x>",
        "x" * 5000,
        "00000000-0000-0000-0000-000000000000",
    ),
)
NUMBERS: Final = (
    *("-1", "0x5", "5.5", "5e0", "\u0665", "", "5/..", "5%00", "9" * 30, "null", "true", "NaN", "5;", "5 OR 1=1"),
    *("18446744073709551616", "-9223372036854775809", "x" * 2000),
)
PATHS: Final = (
    *(
        "../../secret",
        "/etc/passwd",
        "actor/../../../secret",
        "..%2f..%2fsecret",
        "%2e%2e/secret",
        "\x00",
        f"{NAME}\x00",
    ),
    *(
        f"./{NAME}",
        f"actor//{NAME}",
        "actor\\model.safetensors",
        "\u202e",
        "file:///etc/passwd",
        "x" * 10_000,
        "~",
        ".",
    ),
    *("/proc/self/environ", "/dev/zero", "actor/model.safetensors/../../secret", f"{NAME}/", f" {NAME}", NAME.upper()),
)
RANGES: Final = (
    *("bytes=-1,-2", "bytes=0-0,0-0", "bytes=" + ",".join(["0-"] * 5000), "bytes=0--1", "bytes=-0", "bytes= 0-1 x"),
    *("bytes=18446744073709551616-", "bytes=0x0-0x5", "bytes=1e3-", "\u0662-\u0663", "none", "bytes=", "BYTES=5-2"),
)


@pytest.fixture
async def saved(tmp_path: Path, anyio_backend: str) -> AsyncIterator[DaemonParts]:
    """A run with checkpoints on the disk, and a secret beside them."""
    (tmp_path / "secret").write_text(CANARY)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "secret").write_text(CANARY)
    run = SavedRun(Recorder(), name="saved", job_dir=str(tmp_path / "job"), faults=False).write()
    async with open_daemon(tmp_path, token=OWNER, run=run) as opened:
        yield opened


def fault_of(answer: httpx.Response) -> str:
    """The fault of an answer to a hostile request; empty for a refusal that says why."""
    if CANARY.encode() in answer.content or CONTENT[:200] in answer.content:
        return "bytes of a file came back"
    if not 400 <= answer.status_code < 500:
        return f"answered {answer.status_code}"
    problem = answer.json()
    return "" if problem["code"].startswith("RFTD-") and problem["detail"] else "says no reason"


async def test_hostile_names_numbers_and_paths_are_refused_with_a_reason(saved: DaemonParts) -> None:
    at, file = "/v1/experiments", f"file?path={NAME}"
    addresses = [f"{at}/{quote(name, safe='')}/checkpoints{end}" for name in NAMES for end in ("", "/5", f"/5/{file}")]
    addresses += [f"{at}/saved/checkpoints/{quote(n, safe='')}{end}" for n in NUMBERS if n for end in ("", f"/{file}")]
    addresses += [f"{at}/saved/checkpoints/5/{file}&generation={quote(n, safe='')}" for n in NUMBERS]
    addresses += [f"{at}/saved/checkpoints?limit={quote(n, safe='')}" for n in NUMBERS]
    addresses += [f"{at}/saved/checkpoints?cursor={quote(n, safe='')}" for n in (*NAMES, *PATHS)]
    addresses += [f"{at}/saved/checkpoints/5/file?path={quote(path, safe='')}" for path in PATHS]
    faults = {}
    async with saved.client(Authorization=f"Bearer {OWNER}") as client:
        for address in addresses:
            if fault := fault_of(await client.get(address)):
                faults[address[:200]] = fault
    assert faults == {}


async def test_a_hostile_range_is_the_whole_file_or_refused(saved: DaemonParts) -> None:
    path = f"/v1/experiments/saved/checkpoints/5/file?path={NAME}"
    async with saved.client(Authorization=f"Bearer {OWNER}") as client:
        for wanted in RANGES:
            answer = await client.get(path, headers=[(b"Range", wanted.encode())])
            match answer.status_code:
                case 200:
                    assert answer.content == CONTENT, wanted[:100]
                case 206:
                    assert answer.content in CONTENT, wanted[:100]
                    assert len(answer.content) == int(answer.headers["content-length"]), wanted[:100]
                case _:
                    assert answer.status_code == 416, wanted[:100]
                    assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"


async def test_nobody_but_owner_and_admin_learns_whether_a_file_exists(saved: DaemonParts, tmp_path: Path) -> None:
    tokens = {role: TokenFile(tmp_path).add(role, role, created_ns=0, expires_ns=None, quota=Quota()) for role in ROLES}
    for token in ("", "wrong", *tokens.values()):
        async with saved.client(Authorization=f"Bearer {token}") as client:
            at = "/v1/experiments/saved/checkpoints/5/file"
            answers = [await client.get(at, params={"path": path}) for path in (NAME, "absent", "../../secret")]
        assert {answer.status_code for answer in answers} <= {401, 403}
        assert len({answer.json()["detail"] for answer in answers}) == 1
