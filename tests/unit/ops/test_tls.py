"""A server's certificate: checked at the start, with what is wrong named, and renewed in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from synthetic.servers.certificates import make_certificate, make_expired_certificate, needs_openssl

from rftd.ops.tls import CertificateFileError, ServerTls

pytestmark = needs_openssl


def test_its_names_are_those_by_which_it_is_reached(tmp_path: Path) -> None:
    tls = ServerTls(*make_certificate(tmp_path, "own", names="DNS:Box.example,DNS:*.example,IP:127.0.0.1"))
    assert tls.names == ("box.example", "*.example")
    assert tls.addresses == ("127.0.0.1",)
    assert tls.host_for("127.0.0.1") == "127.0.0.1"
    assert tls.host_for("0.0.0.0") == "box.example"


def test_what_cannot_be_served_is_named(tmp_path: Path) -> None:
    own, other = make_certificate(tmp_path, "own"), make_certificate(tmp_path, "other")
    expired = make_expired_certificate(tmp_path)
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
    for certificate, key, what in (
        (own.certificate, other.key, "not that of the certificate"),
        (expired.certificate, expired.key, "it has expired"),
        (tmp_path / "none.crt", own.key, "cannot be read"),
        (own.certificate, tmp_path, "cannot be read"),
        (junk, own.key, "no certificate and key"),
        (own.certificate, junk, "no certificate and key"),
    ):
        with pytest.raises(CertificateFileError, match=what):
            ServerTls(certificate, key)


def test_a_renewed_certificate_is_taken_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    own = make_certificate(tmp_path, "own")
    tls = ServerTls(*own)
    assert not tls.renew()
    new = make_certificate(tmp_path, "new")
    os.replace(new.certificate, own.certificate)
    with pytest.raises(CertificateFileError, match="not that of the certificate"):
        tls.renew()
    os.replace(new.key, own.key)
    assert tls.renew()
    assert not tls.renew()
