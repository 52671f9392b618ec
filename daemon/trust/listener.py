"""`is_others_port`: whether a port of this machine is listened on by another user, as far as the kernel says."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_LISTENS: Final = "0A"
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


def is_others_port(url: str) -> bool:
    """True if another user than ours or root listens on the loopback port of `url`.

    A daemon that was killed leaves its address in its folder, and anybody on the machine can take the port: the owner's
    token must not go there. Where the kernel does not say who listens, False.
    """
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or "") or parts.port is None:
        return False
    users = set[int]()
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == parts.port:
                users.add(int(fields[7]))
    return bool(users - {0, os.geteuid()})


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
