"""A server's certificate: checked at the start, with what is wrong named, and renewed in place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from synthetic.servers.certificates import Authority

from rftd.ops.tls import CertificateFileError, ServerTls

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def test_its_names_are_those_by_which_it_is_reached(tmp_path: Path) -> None:
    tls = ServerTls(*Authority(tmp_path).certificate("own", hosts="DNS:Box.example,DNS:*.example,IP:127.0.0.1"))
    assert tls.names == ("box.example", "*.example")
    assert tls.addresses == ("127.0.0.1",)
    assert tls.host_for("127.0.0.1") == "127.0.0.1"
    assert tls.host_for("0.0.0.0") == "box.example"


def test_what_cannot_be_served_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.certificate("own"), authority.certificate("other")
    expired = authority.certificate("expired", expired=True)
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
    for certificate, key, what in (
        (own[0], other[1], "not that of the certificate"),
        (expired[0], expired[1], "it has expired"),
        (tmp_path / "none.crt", own[1], "cannot be read"),
        (own[0], tmp_path, "cannot be read"),
        (junk, own[1], "no certificate and key"),
        (own[0], junk, "no certificate and key"),
    ):
        with pytest.raises(CertificateFileError, match=what):
            ServerTls(certificate, key)


def test_a_renewed_certificate_is_taken_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.certificate("own")
    tls = ServerTls(*own)
    assert not tls.renew()
    new = authority.certificate("new")
    os.replace(new[0], own[0])
    with pytest.raises(CertificateFileError, match="not that of the certificate"):
        tls.renew()
    os.replace(new[1], own[1])
    assert tls.renew()
    assert not tls.renew()


def test_names_after_a_renewal_are_those_of_the_new_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.certificate("own", hosts="DNS:old.example,IP:127.0.0.1")
    tls = ServerTls(*own)
    for new, current in zip(authority.certificate("new", hosts="DNS:new.example,IP:127.0.0.2"), own, strict=True):
        os.replace(new, current)
    assert tls.renew()
    assert (tls.names, tls.addresses) == (("new.example",), ("127.0.0.2",))
