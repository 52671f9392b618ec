"""A real Prometheus that scrapes one daemon, with our rules."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from synthetic.dashboards.files import OPS


class Prometheus:
    """The server, to be asked."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of a query now; nothing while it does not answer."""
        asked = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                return []
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            return []
        return found

    def scraped(self, selector: str) -> dict[float, float]:
        """The samples of one series as they were scraped, by their time: `selector` ends in a range."""
        found = self.ask(selector)
        assert len(found) <= 1, f"{selector}: {len(found)} series"
        return {float(time): float(value) for series in found for time, value in series["values"]}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def prometheus_of(folder: Path, daemon: str, token: Path, *, every_s: int = 2) -> Iterator[Prometheus]:
    """A Prometheus with our rules, which scrapes every `every_s` with the token in a file, while the block runs."""
    at = f"127.0.0.1:{free_port()}"
    target = {
        "job_name": "rftd",
        "authorization": {"credentials_file": str(token)},
        "static_configs": [{"targets": [urllib.parse.urlsplit(daemon).netloc]}],
    }
    every = {"scrape_interval": f"{every_s}s", "scrape_timeout": f"{every_s}s", "evaluation_interval": f"{every_s}s"}
    rules = [str(OPS / "prometheus" / "rules.yml")]
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": every, "rule_files": rules, "scrape_configs": [target]}))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={at}"], stdout=log, stderr=log)
    try:
        yield Prometheus(f"http://{at}")
    finally:
        process.kill()
        process.wait()
