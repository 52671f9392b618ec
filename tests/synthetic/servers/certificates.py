"""Certificates of our own, made by the program openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

_AUTHORITY = """
[ca]
default_ca = own
[own]
database = {folder}/index.txt
new_certs_dir = {folder}
serial = {folder}/serial
default_md = sha256
policy = any
[any]
commonName = supplied
"""


class CertificateFiles(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


def make_certificate(folder: Path, name: str, *, names: str = "DNS:localhost,IP:127.0.0.1") -> CertificateFiles:
    """A certificate that signed itself, for `names` and two days."""
    files = CertificateFiles(folder / f"{name}.crt", folder / f"{name}.key")
    _openssl(*_request(files), "-x509", "-out", files.certificate, "-days", 2, "-addext", f"subjectAltName={names}")
    return files


def make_expired_certificate(folder: Path) -> CertificateFiles:
    """One that has expired."""
    files = CertificateFiles(folder / "expired.crt", folder / "expired.key")
    asked, config = folder / "expired.csr", folder / "authority.cnf"
    config.write_text(_AUTHORITY.format(folder=folder))
    (folder / "index.txt").write_text("")
    (folder / "serial").write_text("01\n")
    _openssl(*_request(files), "-out", asked)
    dates = ("-startdate", "20200101000000Z", "-enddate", "20210101000000Z")
    signed = ("-selfsign", "-batch", "-notext", "-config", config, "-keyfile", files.key, "-in", asked)
    _openssl("ca", *signed, *dates, "-out", files.certificate)
    return files


def _request(files: CertificateFiles) -> tuple[object, ...]:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", files.key)
    return ("req", *key, "-subj", "/CN=rftd")


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
