"""A real daemon with real workers, traced: one trace over both, in a caller's where there is one; log lines by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.servers.otlp_receiver import otlp_receiver

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.e2e
def test_a_trace_crosses_the_processes(tmp_path: Path) -> None:
    with otlp_receiver() as receiver:
        scene = Scene(tmp_path, "--traces", receiver.url, environ={"RFTD_TRACE_RATIO": "1"})
        with scene.host:
            name = scene.submit(EXPERIMENT, *SHORT)
            assert scene.until_ended(name).experiment.summary.state == "completed"
            answer = scene.get("/v1/experiments", traceparent=CALLER)
            assert answer.status_code == 200
            metrics = scene.get("/metrics").text
            trainer = scene.folder / "checkpoints" / "crash" / name / "log" / "trainer.log"
            lines = [json.loads(line) for line in trainer.read_text().splitlines() if line.startswith("{")]
            step = next(line for line in lines if line["event"] == "step.completed")
            said = scene.rftd("logs", name, "--trace", step["trace_id"], "--json")
            found = json.loads(said.out)["items"]
        receiver.until(lambda: receiver.named("GET /v1/experiments"))
    spans = {span.id: span for span in receiver.spans}
    made = receiver.named("create rftd.experiences")
    assert made
    for create in made:
        above = receiver.above(create)
        assert [span.service for span in above] == ["rftd-explorer", "rftd-explorer", "rftd-explorer", "rftd-daemon"]
        assert len({span.trace for span in above}) == 1
    steps = receiver.named("train_step")
    assert {span.service for span in steps} == {"rftd-trainer"}
    assert {link for span in steps for link in span.links} <= {(span.trace, span.id) for span in made}
    assert all(span.links for span in steps)
    assert {tuple((each.name, each.service) for each in receiver.above(span)[1:]) for span in steps} == {
        (("plan_batch", "rftd-daemon"),)
    }
    assert len(receiver.named("POST /v1/experiments")) == 1
    loads = receiver.named("load_weights")
    assert {(spans[span.parent].name, spans[span.parent].service) for span in loads} == {
        ("publish_weights", "rftd-trainer")
    }
    (asked,) = [span for span in receiver.named("GET /v1/experiments") if span.parent == CALLER.split("-")[2]]
    assert (asked.service, asked.trace) == ("rftd-daemon", CALLER.split("-")[1])
    assert 'rftd_trace_spans_dropped_total{experiment="",role="daemon",slot=""} 0.0' in metrics
    assert [line["event"] for line in found if line["event"] == "step.completed"] == ["step.completed"]
    assert {line["fields"]["trace_id"] for line in found} == {step["trace_id"]}
