"""A data folder of another form than this release's is refused by `rftd serve` with a code, and stays as it is."""

from __future__ import annotations

import sqlite3
from hashlib import sha256
from pathlib import Path

import pytest
from synthetic.daemon.scene import Scene

from rftd.ops.errors import ConflictError
from rftd.streams.sqlite.schema import SCHEMA_VERSION

pytestmark = pytest.mark.e2e
SERVING = {"daemon.log", "log.lock"}
"""Files that any start of a daemon writes."""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A folder that a daemon has used."""
    scene = Scene(tmp_path)
    with scene.host:
        pass
    return scene


def contents(folder: Path) -> dict[str, str]:
    """The digest of each file by its path."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in SERVING]
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


def change(database: Path, statement: str) -> None:
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(statement)
    connection.close()


def refused_by_serve(scene: Scene, reason: str) -> None:
    refused = scene.rftd("serve", "--port", "0")
    assert refused.status == ConflictError.exit_status
    assert ConflictError.code in refused.err
    assert reason in refused.err
    assert "use the release" in refused.err


def test_a_folder_whose_log_has_another_form_is_refused_and_stays_as_it_is(scene: Scene) -> None:
    data = scene.data.root
    change(data / "log" / "log.db", "PRAGMA user_version = 3")
    before = contents(data)
    refused_by_serve(scene, f"the log's schema is version 3; this release reads version {SCHEMA_VERSION}")
    assert contents(data) == before


def test_tables_of_another_form_are_refused_and_stay_as_they_are(scene: Scene) -> None:
    change(scene.data.state, "UPDATE rftd_schema SET version_num = '0010'")
    records = scene.verified().records
    tables = scene.data.state.read_bytes()
    refused_by_serve(scene, "made by another release of rftd (schema 0010")
    assert scene.data.state.read_bytes() == tables
    assert scene.verified().records == records
