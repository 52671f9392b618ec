"""Checks of the daemon that should be there: its port, its readiness, what its folder says of it."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from rftd.daemon.client.address import ENDPOINT_FILE
from rftd.daemon.client.client import Client
from rftd.daemon.settings import Settings
from rftd.daemon.views.version import version as read_version
from rftd.ops.errors import RftdError
from rftd.ops.health import Diagnosis


def check_daemon(settings: Settings) -> list[Diagnosis]:
    """Checks that a daemon answers; if none does, that its port is free."""
    with Client(replace(settings, timeout_s=min(settings.timeout_s, 5.0))) as client:
        try:
            version = client.ask(read_version).value.version
            ready, text = client.readiness()
        except RftdError as error:
            away = Diagnosis("daemon", "warn", f"none answers at {client.url}: {error.what}", "start it: rftd serve")
            return [away, _port(client.url)]
    if not ready:
        return [Diagnosis("daemon", "fail", f"{client.url} is not ready: {text}", "see the daemon's log")]
    return [Diagnosis("daemon", "ok", f"{client.url} is ready (rftd {version})")]


def check_endpoint(folder: Path) -> list[Diagnosis]:
    """Checks that the daemon which the folder names is alive."""
    path = folder / ENDPOINT_FILE
    try:
        pid = int(json.loads(path.read_text())["pid"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        return [Diagnosis("endpoint", "warn", f"{path} cannot be read", "restart the daemon: it writes it anew")]
    try:
        # Signal 0 reaches nobody: the kernel only says whether the process exists.
        os.kill(pid, 0)
    except ProcessLookupError:
        return [Diagnosis("endpoint", "warn", f"{path} names process {pid}, which is gone", "start it: rftd serve")]
    except PermissionError:
        pass  # alive, another user's
    return [Diagnosis("endpoint", "ok", f"process {pid} is alive")]


def _port(url: str) -> Diagnosis:
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    port = parts.port or 7070
    try:
        with socket.create_connection((host, port), timeout=1.0):
            pass
    except OSError:
        return Diagnosis("port", "ok", f"{port} is free")
    return Diagnosis("port", "fail", f"another program listens on {host}:{port}", "give rftd serve another --port")
