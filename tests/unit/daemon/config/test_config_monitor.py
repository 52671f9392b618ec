"""The section `monitor`: the trackers of an experiment, and the arguments of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission
from rftd.streams.spec.stage_parts import TrackerSpec

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


def said(submission: Submission) -> list[str]:
    return [text for text in submission.warnings if text.startswith("monitor.monitor_args")]


@pytest.mark.parametrize(
    "monitor",
    [
        "{monitor_type: wandb, monitor_args: {base_url: 'http://localhost:8080', api_key: {env: WANDB_API_KEY}}}",
        "{monitor_type: MLflow, monitor_args: {uri: 'http://localhost:5000', username: me, password: {env: P}}}",
        "{monitor_type: tensorboard, monitor_args: {}}",
        "{monitor_type: jsonl, also: [console, TensorBoard]}",
        "{monitor_type: jsonl, also: [mlflow], monitor_args: {uri: 'http://h:5000'}}",
        "{monitor_type: mlflow, monitor_args: {uri: 'sqlite:////data/runs.db'}}",
        "{monitor_type: mlflow, monitor_args: {uri: 'mysql+pymysql://h/runs'}}",
        "{monitor_type: mlflow, monitor_args: {uri: 'file:///data/runs'}}",
        "{monitor_type: mlflow, monitor_args: {uri: /data/runs}}",
        "{monitor_type: mlflow, monitor_args: {uri: databricks}}",
        "{monitor_type: mlflow, monitor_args: {uri: {env: MLFLOW_TRACKING_URI}}}",
        "{monitor_args: null}",
        "{monitor_type: wandb, monitor_args: {base_url: null}}",
        "{monitor_type: swanlab, monitor_args: {workspace: w, mode: local, tags: [a, b]}}",
        "{monitor_type: swanlab, monitor_args: {api_key: {env: K}, resume: null, settings: {a: 1}, tags: null}}",
    ],
)
def test_the_guides_arguments_are_taken(load: Load, monitor: str) -> None:
    assert said(load(overrides=[f"monitor={monitor}"])) == []


@pytest.mark.parametrize(
    ("monitor", "words"),
    [
        ("{monitor_type: wandb, monitor_args: {bas_url: x}}", "monitor_args.bas_url: .*did you mean 'base_url'"),
        (
            "{monitor_type: wandb, monitor_args: {uri: [], entity: a}}",
            "monitor_args.entity: is not an argument of wandb",
        ),
        (
            "{monitor_type: wandb, monitor_args: {base_url: 8080}}",
            "monitor_args.base_url: is a number or boolean, and wandb takes",
        ),
        ("{monitor_type: mlflow, monitor_args: {uri: {host: x}}}", "monitor_args.uri: is a mapping, and mlflow takes"),
        (
            "{monitor_type: mlflow, monitor_args: {uri: 'ftp://h'}}",
            "monitor_args.uri: is not the address of an MLflow server.*http://",
        ),
        (
            "{monitor_type: mlflow, monitor_args: {uri: 'h:5000'}}",
            "monitor_args.uri: is not the address of an MLflow server.*http://",
        ),
        (
            "{monitor_type: mlflow, monitor_args: {uri: runs}}",
            "monitor_args.uri: is not the address of an MLflow server.*file:///",
        ),
        ("{monitor_type: mlflow, monitor_args: {uri: 'http://'}}", "monitor_args.uri: names no host.*and a host"),
        (
            "{monitor_type: wandb, monitor_args: {base_url: 'ftp://h'}}",
            "monitor_args.base_url: .*http address.*http://",
        ),
        ("{monitor_type: wandb, monitor_args: {base_url: /data}}", "monitor_args.base_url: .*http address.*http://"),
        (
            "{monitor_type: wandb, monitor_args: {base_url: 'http://h:port'}}",
            "monitor_args.base_url: is no http address",
        ),
        ("{monitor_type: swanlab, monitor_args: {workspce: w}}", "monitor_args.workspce: .*did you mean 'workspace'"),
        ("{monitor_type: swanlab, monitor_args: {workspace: 3}}", "monitor_args.workspace: is a number or boolean"),
        ("{monitor_type: swanlab, monitor_args: {mode: clud}}", "monitor_args.mode: is 'clud'.*cloud, local, offline"),
        ("{monitor_type: swanlab, monitor_args: {tags: [1]}}", "monitor_args.tags: .*write a list of texts"),
        ("{monitor_type: swanlab, monitor_args: {reinit: 'no'}}", "monitor_args.reinit: .*write true or false"),
        ("{monitor_args: {flush_secs: 3}}", "monitor_args.flush_secs: is not an argument of any tracker"),
    ],
)
def test_what_no_monitor_takes_is_refused(errors: Errors, monitor: str, words: str) -> None:
    (text,) = errors(overrides=[f"monitor={monitor}"])
    for part in words.split(".*"):
        assert part in text


def test_what_cannot_act_is_named_with_the_reason(load: Load) -> None:
    (alone,) = said(load(overrides=["monitor={monitor_args: {base_url: 'http://h'}}"]))
    assert alone == "monitor.monitor_args has no effect: base_url is for wandb, and there is no monitor_type"
    (handed_on,) = said(load(overrides=["monitor={monitor_type: swanlab, monitor_args: {public: true}}"]))
    assert handed_on == "monitor.monitor_args.public is not checked: it is passed to swanlab unchanged"
    settled = said(load(overrides=["monitor={monitor_type: swanlab, monitor_args: {resume: true, reinit: false}}"]))
    assert [text.partition(" has no effect")[0] for text in settled] == [
        "monitor.monitor_args.resume",
        "monitor.monitor_args.reinit",
    ]
    (idle,) = said(load(overrides=["monitor={monitor_type: wandb, monitor_args: {workspace: w}}"]))
    assert idle == "monitor.monitor_args has no effect: workspace is for swanlab, not for wandb"
    arguments = "{workspace: w, base_url: 'http://h'}"
    (of_another,) = said(load(overrides=[f"monitor={{monitor_type: wandb, monitor_args: {arguments}}}"]))
    assert of_another == "monitor.monitor_args.workspace has no effect: it is for swanlab, not for wandb"


def test_nothing_is_tracked_unless_it_is_written(load: Load) -> None:
    assert load().spec.trackers == ()
    assert load(overrides=["monitor={}"]).spec.trackers == ()


def test_several_trackers_follow_one_experiment(load: Load) -> None:
    spec = load(overrides=["monitor={monitor_type: tensorboard, also: [jsonl], single_run: true}"]).spec
    assert spec.trackers == (
        TrackerSpec(kind="tensorboard", single_run=True),
        TrackerSpec(kind="jsonl", single_run=True),
    )


def test_a_tracker_twice_is_refused(errors: Errors) -> None:
    (text,) = errors(overrides=["monitor={monitor_type: jsonl, also: [jsonl]}"])
    assert "monitor.also: names a tracker twice" in text


def test_one_run_without_a_tracker_has_no_effect(load: Load) -> None:
    warnings = load(overrides=["monitor={single_run: true}"]).warnings
    assert "monitor.single_run has no effect: there is no monitor_type" in warnings


def test_each_tracker_shows_samples_that_are_asked_for(load: Load, errors: Errors) -> None:
    spec = load(overrides=["monitor={monitor_type: jsonl, also: [console], samples: 4, sample_interval: 5}"]).spec
    assert [(tracker.samples, tracker.sample_interval) for tracker in spec.trackers] == [(4, 5), (4, 5)]
    warnings = load(overrides=["monitor={samples: 4}"]).warnings
    assert "monitor.samples has no effect: there is no monitor_type" in warnings
    warnings = load(overrides=["monitor={monitor_type: jsonl, sample_interval: 5}"]).warnings
    assert "monitor.sample_interval has no effect: monitor.samples is 0" in warnings
    (text,) = errors(overrides=["monitor={monitor_type: jsonl, samples: 1000}"])
    assert "monitor.samples" in text and "64" in text


@pytest.mark.parametrize("kind", ["wandb", "mlflow", "swanlab", "trackio"])
def test_a_missing_package_is_a_warning_with_its_extra(load: Load, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    submission = load(overrides=[f"monitor={{monitor_type: {kind}}}"])
    (text,) = (text for text in submission.warnings if text.startswith("monitor."))
    assert f"needs the module {kind}, which is not installed" in text
    assert f"pip install 'rftd[{kind}]'" in text
    assert [tracker.kind for tracker in submission.spec.trackers] == [kind]


def test_arguments_go_to_the_trackers_that_take_them(load: Load) -> None:
    arguments = "{base_url: 'http://w', api_key: {env: KEY}, uri: 'http://m'}"
    spec = load(overrides=[f"monitor={{monitor_type: wandb, also: [mlflow], monitor_args: {arguments}}}"]).spec
    assert spec.trackers == (
        TrackerSpec(kind="wandb", args={"base_url": "http://w"}, variables={"api_key": "KEY"}),
        TrackerSpec(kind="mlflow", args={"uri": "http://m"}),
    )
