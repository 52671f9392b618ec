"""`ServerTls`: a server's certificate and key, checked before start-up, and reloaded when the files change."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import UsageError

WATCH_S: Final = 10.0
"""Interval in seconds between checks of the files: a certificate is renewed weeks before it ends."""
_EXPIRED: Final = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""


class CertificateFileError(UsageError):
    """The certificate or the key of `rftd serve` cannot be read, do not belong together, or are out of date."""

    code = "RFTD-TLS-001"
    remedy = "Name a valid certificate, `--tls-cert`, and its own key without a passphrase, `--tls-key`."


class ServerTls:
    """A server's certificate and key from two PEM files, with the resulting TLS context."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Loads and checks both files. Raises CertificateFileError."""
        self._certificate = certificate
        self._key = key
        self._stamp = self._stamped()
        self.context = _context_of(certificate, key)
        """The context used by the server's connections; `renew` changes it in place."""
        self.names, self.addresses = _subject_of(self.context, certificate)
        """Host names and IP addresses of the certificate in use."""

    def renew(self) -> bool:
        """Reloads changed files; True if changed. Raises CertificateFileError and keeps the current pair if invalid."""
        stamp = self._stamped()
        if stamp == self._stamp:
            return False
        # Tried separately: the context in use must not end up with a certificate and the key of another.
        subject = _subject_of(_context_of(self._certificate, self._key), self._certificate)
        self.context.load_cert_chain(self._certificate, self._key)
        self.names, self.addresses = subject
        self._stamp = stamp
        return True

    def host_for(self, bound: str) -> str:
        """Returns a host name of the certificate for a bound address; the address itself without a name."""
        if bound in self.addresses or bound in self.names:
            return bound
        if "localhost" in self.names:
            return "localhost"
        plain = [name for name in self.names if "*" not in name]
        return (plain or [bound])[0]

    def trusting(self) -> ssl.SSLContext:
        """Returns a client's context trusting only this certificate, under any host name."""
        context = _trusting(self._certificate)
        context.check_hostname = False
        return context

    def _stamped(self) -> tuple[tuple[int, int], ...]:
        """Returns inode and modification time of both files. Raises CertificateFileError."""
        stamps = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
            except OSError as error:
                raise CertificateFileError(f"cannot be read: {error.strerror}", where=str(path)) from None
            stamps.append((status.st_ino, status.st_mtime_ns))
        return tuple(stamps)


def _context_of(certificate: Path, key: Path) -> ssl.SSLContext:
    """Returns a server's context with certificate and key. Raises CertificateFileError."""
    for option, path in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise CertificateFileError(f"cannot be read: {error.strerror}", where=str(path), field=option) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With an empty passphrase: OpenSSL would otherwise prompt at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateFileError(
                f"the key in {key} is not that of the certificate", where=str(certificate), field="--tls-key"
            ) from None
        message = f"no certificate and key in PEM form without a passphrase: {error.reason or error}"
        raise CertificateFileError(message, where=f"{certificate}, {key}", field="--tls-cert") from None
    return context


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Returns a client's context that trusts only the given certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate)
    # The certificate itself is trusted, under any signature.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def _subject_of(server: ssl.SSLContext, certificate: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns names and addresses of a certificate, as seen by a client connecting in memory.

    Raises CertificateFileError for a certificate that has expired or is not valid yet.
    """
    client = _trusting(certificate)
    client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_side=False),
    )
    try:
        for _ in range(8):  # a handshake takes three rounds at most
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        reason = "it has expired" if error.verify_code == _EXPIRED else error.verify_message
        reason = f"no client would accept it: {reason}"
        raise CertificateFileError(reason, where=str(certificate), field="--tls-cert") from None
    except ssl.SSLError as error:
        raise CertificateFileError(f"it cannot be used: {error}", where=str(certificate), field="--tls-cert") from None
    peer: dict[str, Any] = ends[1].getpeercert() or {}
    alternatives = [(kind, str(name)) for kind, name in peer.get("subjectAltName", ())]
    names = tuple(name.lower() for kind, name in alternatives if kind == "DNS")
    return names, tuple(name for kind, name in alternatives if kind == "IP Address")
