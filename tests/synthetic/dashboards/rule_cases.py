"""Cases for `promtool test rules`: each alert fires, none does where nothing is wrong, and the bottleneck is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from synthetic.dashboards.experiment import BOTTLENECK
from synthetic.dashboards.panel import ANY
from synthetic.dashboards.rules import ALERTS, runbook


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """A case of nothing wrong, in which an alert must not fire."""

    name: str
    """The alert's."""
    series: dict[str, str]
    at: str


def _state(value: str, *, instance: str = "a", state: str = "running") -> dict[str, str]:
    return {f'rftd_experiment_state{{instance="{instance}",experiment="e",state="{state}"}}': value}


QUIET: Final = (
    # Another daemon has an experiment of the same name.
    Quiet(
        name="RftdRoleHeartbeatMissing",
        series={
            'rftd_experiment_heartbeat_timestamp_seconds{instance="a",experiment="e",role="explorer"}': "0x60",
            **_state("1x60", state="completed"),
            **_state("1x60", instance="b"),
        },
        at="5m",
    ),
    Quiet(
        name="RftdRolloutErrorsHigh",
        series={
            'rftd_rollouts_total{instance="a",experiment="e",taskset="t",outcome="ok"}': "0+99x60",
            'rftd_rollouts_total{instance="a",experiment="e",taskset="t",outcome="error"}': "0+1x60",
            **_state("1x60"),
        },
        at="30m",
    ),
    Quiet(
        name="RftdSignalLost",
        series={
            'rftd_signal_lost{instance="a",experiment="e",cause="prompts_cut"}': "1x60",
            **_state("1x60", state="cancelled"),
        },
        at="5m",
    ),
    # It ended, and what was left over was retired.
    Quiet(
        name="RftdStaleRetired",
        series={
            'rftd_experiences_total{instance="a",experiment="e",stage="produce",outcome="ok"}': "0+10x20 200x60",
            'rftd_experiences_total{instance="a",experiment="e",stage="retire",outcome="stale"}': "0x20 100x60",
            **_state("1x20 _x60"),
        },
        at="31m",
    ),
    Quiet(
        name="RftdPolicyCollapse",
        series={
            'rftd_train_entropy_nats{instance="a",experiment="e"}': "0.001x60",
            'rftd_signal_solved{instance="a",experiment="e"}': "1x60",
            **_state("1x60"),
        },
        at="30m",
    ),
    # It saves checkpoints; it was just resumed; it only evaluates.
    *(
        Quiet(name="RftdCheckpointOld", series={**series, **_state("1x300")}, at="200m")
        for series in (
            {
                'rftd_experiment_state_timestamp_seconds{instance="a",experiment="e"}': "0x300",
                'rftd_checkpoint_last_success_timestamp_seconds{instance="a",experiment="e"}': "0+60x300",
                'rftd_train_step{instance="a",experiment="e"}': "0+1x300",
            },
            {
                'rftd_experiment_state_timestamp_seconds{instance="a",experiment="e"}': "11000x300",
                'rftd_checkpoint_last_success_timestamp_seconds{instance="a",experiment="e"}': "0x300",
                'rftd_train_step{instance="a",experiment="e"}': "9x300",
            },
            {
                'rftd_experiment_state_timestamp_seconds{instance="a",experiment="e"}': "0x300",
                'rftd_train_step{instance="a",experiment="e"}': "0x300",
            },
        )
    ),
)

WAITING: Final = {
    0: ("running", "busy", "busy", True),
    1: ("running", "wait_batch", "busy", True),
    2: ("running", "busy", "wait_tasks", True),
    3: ("running", "wait_batch", "wait_tasks", True),
    4: ("paused", "paused", "wait_tasks", True),
    5: ("running", "busy", "wait_tasks", False),
}
"""By the panel's number the state of an experiment and of its roles, and whether its stage wants rollouts."""


def made_cases() -> dict[str, Any]:
    """The cases as `promtool test rules` reads them."""
    cases = []
    for each in ALERTS:
        expected = {
            "exp_labels": {"severity": each.severity, **each.labels},
            "exp_annotations": {"summary": each.said, "runbook_url": runbook(each)},
        }
        told = {"eval_time": each.at, "alertname": each.name, "exp_alerts": [expected]}
        fed = [{"series": series, "values": values} for series, values in each.series.items()]
        cases.append({"interval": "1m", "input_series": fed, "alert_rule_test": [told]})
    for quiet in QUIET:
        told = {"eval_time": quiet.at, "alertname": quiet.name, "exp_alerts": []}
        fed = [{"series": series, "values": values} for series, values in quiet.series.items()]
        cases.append({"interval": "1m", "input_series": fed, "alert_rule_test": [told]})
    cases += [_bottleneck_case(number, *given) for number, given in WAITING.items()]
    return {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases}


def _bottleneck_case(number: int, state: str, trainer: str, explorer: str, explores: bool) -> dict[str, Any]:
    """The panel's number for roles in these states, each for all of its time."""
    series = {
        f'rftd_experiment_state{{experiment="e",state="{state}"}}': "1x20",
        f'rftd_role_state_seconds_total{{experiment="e",role="trainer",state="{trainer}"}}': "0+60x20",
        f'rftd_role_state_seconds_total{{experiment="e",role="explorer",state="{explorer}"}}': "0+60x20",
    }
    if explores:
        series['rftd_experiment_last_progress_timestamp_seconds{experiment="e",role="explorer"}'] = "0x20"
    asked = {
        "expr": BOTTLENECK.replace("$experiment", "e").replace("$daemon", ANY),
        "eval_time": "10m",
        "exp_samples": [{"labels": "{}", "value": number}],
    }
    fed = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "1m", "input_series": fed, "promql_expr_test": [asked]}
