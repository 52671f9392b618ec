"""A daemon over TLS: the same user's command line and a stranger's, and a certificate that does not match."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic.daemon.scene import Scene
from synthetic.servers.certificates import Authority
from synthetic.until import poll


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.e2e
def test_https_is_served_and_believed_only_with_the_right_certificate(tmp_path: Path) -> None:
    own, other = Authority(tmp_path / "own"), Authority(tmp_path / "other")
    certificate, key = own.certificate("daemon")
    daemon = Scene(tmp_path).spawn(
        "serve", "serve", "--port", "0", "--tls-cert", str(certificate), "--tls-key", str(key)
    )
    scene = Scene(tmp_path)
    try:
        for environ, status, word in (
            ({"SSL_CERT_FILE": str(own.ca_file)}, 0, ""),
            ({"SSL_CERT_FILE": str(other.ca_file)}, 4, "RFTD-NET-002"),
            ({"SSL_CERT_FILE": ""}, 4, "RFTD-NET-002"),
        ):
            _until_ready(scene, daemon)
            said = scene.rftd("ls", environ=environ)
            assert (said.status, word in said.err) == (status, True), said
        assert scene.rftd("--server", "http://127.0.0.1:1", "ls").status == 4
    finally:
        daemon.terminate()
        assert daemon.wait(30) == 0


def _until_ready(scene: Scene, daemon: subprocess.Popen[bytes]) -> None:
    log = scene.folder / "serve.log"
    poll(lambda: "ready in" in log.read_text() or daemon.poll() is not None)
    assert "ready in" in log.read_text(), log.read_text()
    assert "https://127.0.0.1:" in log.read_text()
    assert "/login?code=" not in log.read_text(), "a link is for a terminal alone"
