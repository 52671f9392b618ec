"""An MLflow server of the session's own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from synthetic.until import poll


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a database of its own."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    database = f"sqlite:///{folder}/mlflow.db"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(
        [*command, "--backend-store-uri", database, "--artifacts-destination", str(folder / "files")],
        stdout=(folder / "out").open("wb"),
        stderr=subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        poll(lambda: is_up(url), told=lambda: (folder / "out").read_text())
        yield url
    finally:
        server.terminate()
        server.wait(30)


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
