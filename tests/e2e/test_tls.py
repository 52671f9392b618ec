"""A daemon over TLS: the same user's command line and a stranger's, and a certificate that does not match."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.daemon.scene import Scene
from synthetic.servers.certificates import make_certificate, needs_openssl


@needs_openssl
@pytest.mark.e2e
def test_https_is_served_and_believed_only_with_the_right_certificate(tmp_path: Path) -> None:
    own, other = make_certificate(tmp_path, "own"), make_certificate(tmp_path, "other")
    daemon = Scene(tmp_path, environ={"SSL_CERT_FILE": str(own.certificate)}).spawn(
        "serve", "serve", "--port", "0", "--tls-cert", str(own.certificate), "--tls-key", str(own.key)
    )
    scene = Scene(tmp_path)
    try:
        for environ, status, word in (
            ({"SSL_CERT_FILE": str(own.certificate)}, 0, ""),
            ({"SSL_CERT_FILE": str(other.certificate)}, 4, "RFTD-NET-002"),
            ({"SSL_CERT_FILE": ""}, 4, "RFTD-NET-002"),
        ):
            _until_ready(scene, daemon.poll)
            said = scene.rftd("ls", environ=environ)
            assert (said.status, word in said.err) == (status, True), said
        assert scene.rftd("--server", "http://127.0.0.1:1", "ls").status == 4
    finally:
        daemon.terminate()
        assert daemon.wait(30) == 0


def _until_ready(scene: Scene, poll: object) -> None:
    from synthetic.until import poll as until

    log = scene.folder / "serve.log"
    until(lambda: "ready in" in log.read_text() or not callable(poll) or poll() is not None)
    assert "ready in" in log.read_text(), log.read_text()
    assert "https://127.0.0.1:" in log.read_text()
    assert "/login?code=" not in log.read_text(), "a link is for a terminal alone"
