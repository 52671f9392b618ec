"""Fixtures that several suites share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from rftd.ops.own_folder import process_umask

if TYPE_CHECKING:
    from synthetic.daemon.scene import Scene

sys.path.append(str(Path(__file__).parent))

os.environ.setdefault("RFTD_DISK_RESERVE", "0")  # a machine with little space runs the tests all the same
# Where daemons write down their addresses for their user: a folder of this run, and not that of whoever runs it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="rftd-state-")
# Kafka lives for seconds here: the first of the JIT's two compilers and one thread that collects garbage halve the
# processor time of a start, and of the tool that formats its folder.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Tests start hundreds of daemons, workers and command lines: without bytecode each would compile the whole tree anew,
# a quarter of a daemon's start. And every process of pytest would rewrite the assertions of all tests anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["servers", "inner_loop"]  # a real Kafka and a real Postgres; `--fast`

# Beside a dozen busy processes a draw of examples takes longer than hypothesis expects: that is no fault of a test.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

COST_S = {"slow": 20.0, "e2e": 10.0, "servers": 3.0}
"""Seconds that a test with the mark takes, roughly; any other takes about `COST_UNMARKED_S`."""
COST_UNMARKED_S = 0.1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files with the most work come first, if several processes share them.

    xdist hands out the file with the most tests first, which leaves the long files of few tests to the end, where
    one process works and the others have nothing left. `--no-loadscope-reorder` makes it keep this order instead.
    """
    if not hasattr(config, "workerinput"):
        return
    cost_s: dict[Path, float] = {}
    for item in items:
        marked_s = max(
            (cost for mark, cost in COST_S.items() if item.get_closest_marker(mark)), default=COST_UNMARKED_S
        )
        cost_s[item.path] = cost_s.get(item.path, 0.0) + marked_s
    # The sort is stable, so that tests of one file stay in their order; every process must arrive at the same one.
    items.sort(key=lambda item: (-cost_s[item.path], item.path))


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder of the test's own: what a test starts is found by no other."""
    umask = process_umask()  # `rftd serve` changes it, and many tests run it within their process
    folder = tmp_path_factory.getbasetemp() / "state"
    folder.mkdir(exist_ok=True)
    own = Path(tempfile.mkdtemp(dir=folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(own))
    monkeypatch.delenv("RFTD_TOKEN", raising=False)
    yield own
    os.umask(umask)


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture(params=["embedded", pytest.param("production", marks=pytest.mark.servers)])
def pair(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment that tells `rftd serve` where log and state are: in files, or on a real Kafka and Postgres."""
    if request.param == "embedded":
        return {}
    bootstrap = request.getfixturevalue("kafka_broker").bootstrap
    prefix = request.getfixturevalue("kafka_prefix")
    return {
        "RFTD_KAFKA": f"kafka://{bootstrap}/?prefix={prefix}",
        "RFTD_POSTGRES": request.getfixturevalue("postgres_url"),
    }


@pytest.fixture
def scene(tmp_path: Path, pair: dict[str, str]) -> Iterator[Scene]:
    """A real daemon on a folder of its own; once with files, once on real servers."""
    from synthetic.daemon.scene import Scene

    made = Scene(tmp_path, environ=pair)
    with made.host:
        yield made


@pytest.fixture
def embedded_scene(tmp_path: Path) -> Iterator[Scene]:
    """A real daemon on a folder of its own, for what is about its files."""
    from synthetic.daemon.scene import Scene

    made = Scene(tmp_path)
    with made.host:
        yield made
