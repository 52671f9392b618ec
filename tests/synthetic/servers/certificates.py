"""A certificate authority for tests, and certificates that it signs; by the program openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """One authority, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file = folder / "ca.pem"
        self._key = folder / "ca.key"
        _openssl("req", "-x509", *_KEY, "-keyout", self._key, "-out", self.ca_file, "-days", "9", "-subj", "/CN=tests")

    def certificate(self, name: str, *, hosts: str = "IP:127.0.0.1", expired: bool = False) -> tuple[Path, Path]:
        """The files of a certificate for `hosts` and of its key; the subject is `CN=name`."""
        request, key, signed = (self.folder / f"{name}.{suffix}" for suffix in ("csr", "key", "crt"))
        names = self.folder / f"{name}.ext"
        names.write_text(f"subjectAltName={hosts}\n")
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        # openssl 3.0 knows no end in the past for `x509 -req` but by a negative number of days.
        days = "-1" if expired else "9"
        signing = ("-CA", self.ca_file, "-CAkey", self._key, "-CAcreateserial", "-days", days, "-extfile", names)
        _openssl("x509", "-req", "-in", request, "-out", signed, *signing)
        return signed, key


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)
