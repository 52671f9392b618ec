"""The recorded demo run: served without workers, with curves, texts and truths; a kept daemon ends by the keyboard."""

from __future__ import annotations

import httpx
import pytest

from rftd.daemon.demo.demo import stay
from rftd.daemon.demo.recording import RECORDING, serve_recording

pytestmark = pytest.mark.e2e
PAGES = ("", "/rollouts?order=-reward", "/drops", "/evaluations", "/timeline", "/history", "/lineage", "/configuration")
MOST_BYTES = 700_000


def test_the_recorded_run_has_every_page_and_the_truth_beside_its_answers() -> None:
    assert RECORDING.stat().st_size <= MOST_BYTES
    with serve_recording() as host, httpx.Client(base_url=host.url, headers=host.headers, timeout=60) as client:
        summary = client.get("/v1/experiments/sums").json()["experiment"]["summary"]
        assert summary["state"] == "completed"
        texts = {page: client.get(f"/runs/sums{page}").raise_for_status().text for page in PAGES}
        assert "truth" in texts["/rollouts?order=-reward"]
        best = client.get("/v1/experiments/sums/experiences?order=-reward&limit=1").json()["items"][0]
        answer = client.get(f"/v1/experiments/sums/experiences/{best['id']}/text").json()
        assert answer["truth"]
        assert client.get("/v1/system").raise_for_status()


def test_a_kept_daemon_is_tended_until_an_interrupt_from_the_keyboard() -> None:
    class Kept:
        pid = 1
        settings = None
        tended = 0

        def tend(self) -> None:
            self.tended += 1

    kept = Kept()

    def sleep(_seconds: float) -> None:
        if kept.tended == 3:
            raise KeyboardInterrupt

    stay(kept, sleep=sleep)  # type: ignore[arg-type]
    assert kept.tended == 3
