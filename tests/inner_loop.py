"""`--fast`, the inner loop: leaves out what is slow, and what starts a daemon, its workers or a server.

What a test needs is told by its marks and by the fixtures that it names. A test that gets there by another way fails
under `--fast`, with the mark that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rftd.daemon.http.client.host import DaemonHost

LEFT_OUT = ("slow", "e2e", "servers")
MARK_OF_FIXTURE = {"shared_servers": "servers", "scene": "e2e", "embedded_scene": "e2e"}
"""A test that names such a fixture, or one that needs it, has the mark."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help=f"leave out the tests marked {', '.join(LEFT_OUT)}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, mark in MARK_OF_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
    if config.getoption("fast"):
        left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in LEFT_OUT)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session", autouse=True)
def no_daemon(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under `--fast` no test starts a daemon."""
    if not request.config.getoption("fast"):
        yield
        return

    def refuse(host: DaemonHost) -> DaemonHost:
        pytest.fail("starts a daemon, and lacks the mark `e2e`")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DaemonHost, "__enter__", refuse)
        yield
