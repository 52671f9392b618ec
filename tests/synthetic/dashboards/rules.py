"""Recording rules and alerts for Prometheus, and for each alert what makes it fire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from synthetic.dashboards.experiment import IDLE_STATES

RUNBOOKS: Final = "docs/runbooks.md"
RUNNING: Final = 'and on (instance, experiment) rftd_experiment_state{state="running"} == 1'
"""Of the same daemon: another one may have an experiment of that name."""
RECORDED: Final = {
    "experiment_role:rftd_role_idle:ratio_rate5m": (
        f'sum by (instance, experiment, role) (rate(rftd_role_state_seconds_total{{state=~"{IDLE_STATES}"}}[5m]))'
        " / sum by (instance, experiment, role) (rate(rftd_role_state_seconds_total[5m]))"
    ),
    "experiment:rftd_rollout_reward:mean5m": (
        "(sum by (instance, experiment) (rate(rftd_rollout_reward_gained_total[5m]))"
        " - sum by (instance, experiment) (rate(rftd_rollout_reward_lost_total[5m])))"
        ' / sum by (instance, experiment) (rate(rftd_rollout_reward_bucket{le="+Inf"}[5m]))'
    ),
    "experiment:rftd_experience_staleness_versions:p95_5m": (
        "histogram_quantile(0.95,"
        " sum by (instance, experiment, le) (rate(rftd_experience_staleness_versions_bucket[5m])))"
    ),
    "experiment:rftd_rollout_error:ratio_rate10m": (
        'sum by (instance, experiment) (rate(rftd_rollouts_total{outcome=~"error|timeout"}[10m]))'
        " / sum by (instance, experiment) (rate(rftd_rollouts_total[10m]))"
    ),
    "experiment:rftd_experience_stale:ratio_rate10m": (
        'sum by (instance, experiment) (rate(rftd_experiences_total{stage="retire",outcome="stale"}[10m]))'
        ' / sum by (instance, experiment) (rate(rftd_experiences_total{stage="produce"}[10m]))'
    ),
}
"""Recording rules by name."""
ON_FAILURE: Final = {"experiment:rftd_rollout_error:ratio_rate10m", "experiment:rftd_experience_stale:ratio_rate10m"}
"""Those that a healthy run has no data for."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert, and what makes it fire."""

    name: str
    expr: str
    summary: str
    """A template of Prometheus."""
    lasts: str = "0s"
    severity: str = "warning"
    series: dict[str, str]
    """What the case feeds: values by series, in promtool's notation, one for each minute."""
    at: str
    """The moment of the case at which it fires."""
    labels: dict[str, str] = field(default_factory=dict)
    """Its labels then, beside the severity."""
    said: str
    """Its summary then."""


E: Final = {"experiment": "e"}
IS_RUNNING: Final = {'rftd_experiment_state{experiment="e",state="running"}': "1x200"}
ALERTS: Final = (
    Alert(
        name="RftdSignalLost",
        # It has no `for`: the daemon tells it at the first batch, and pauses the run after a few. Who cancels it knows.
        expr='rftd_signal_lost == 1 unless on (instance, experiment) rftd_experiment_state{state="cancelled"} == 1',
        severity="critical",
        summary="{{ $labels.experiment }} learns nothing: {{ $labels.cause }}",
        series={'rftd_signal_lost{experiment="e",cause="prompts_cut"}': "_x3 1x60"},
        at="5m",
        labels={**E, "cause": "prompts_cut"},
        said="e learns nothing: prompts_cut",
    ),
    Alert(
        name="RftdRoleHeartbeatMissing",
        expr=f"time() - rftd_experiment_heartbeat_timestamp_seconds > 60 {RUNNING}",
        lasts="1m",
        severity="critical",
        summary="{{ $labels.role }} of {{ $labels.experiment }} sends no heartbeat",
        series={'rftd_experiment_heartbeat_timestamp_seconds{experiment="e",role="explorer"}': "0+0x20", **IS_RUNNING},
        at="5m",
        labels={**E, "role": "explorer"},
        said="explorer of e sends no heartbeat",
    ),
    Alert(
        name="RftdExperimentStalled",
        expr=f"time() - rftd_experiment_last_progress_timestamp_seconds > 900 {RUNNING}",
        lasts="5m",
        severity="critical",
        summary="{{ $labels.role }} of {{ $labels.experiment }} has finished nothing for 15 minutes",
        series={'rftd_experiment_last_progress_timestamp_seconds{experiment="e",role="trainer"}': "0x60", **IS_RUNNING},
        at="30m",
        labels={**E, "role": "trainer"},
        said="trainer of e has finished nothing for 15 minutes",
    ),
    Alert(
        name="RftdTrainerStarved",
        # While explorers are at work: a model that serves waits for strangers.
        expr='experiment_role:rftd_role_idle:ratio_rate5m{role="trainer"} > 0.5 and on (instance, experiment)'
        f' rftd_experiment_last_progress_timestamp_seconds{{role="explorer"}} {RUNNING}',
        lasts="15m",
        summary="the trainer of {{ $labels.experiment }} waits for {{ $value | humanizePercentage }} of its time",
        series={
            'rftd_role_state_seconds_total{experiment="e",role="trainer",state="wait_batch"}': "0+45x60",
            'rftd_role_state_seconds_total{experiment="e",role="trainer",state="busy"}': "0+15x60",
            'rftd_experiment_last_progress_timestamp_seconds{experiment="e",role="explorer"}': "0+60x60",
            **IS_RUNNING,
        },
        at="40m",
        labels={**E, "role": "trainer"},
        said="the trainer of e waits for 75% of its time",
    ),
    Alert(
        name="RftdStalenessHigh",
        # An experiment with a bound never exceeds it: there RftdStaleRetired says that the bound is too close.
        expr="experiment:rftd_experience_staleness_versions:p95_5m > 8"
        " unless on (instance, experiment) rftd_experiment_max_staleness_versions",
        lasts="10m",
        summary="95th percentile of the staleness of {{ $labels.experiment }}: {{ $value | humanize }} versions",
        series={
            'rftd_experience_staleness_versions_bucket{experiment="e",le="8"}': "0+0x60",
            'rftd_experience_staleness_versions_bucket{experiment="e",le="16"}': "0+20x60",
            'rftd_experience_staleness_versions_bucket{experiment="e",le="+Inf"}': "0+20x60",
        },
        at="30m",
        labels=E,
        said="95th percentile of the staleness of e: 15.6 versions",
    ),
    Alert(
        name="RftdStaleRetired",
        # While it runs: when nothing is produced any more, what is left over is a share of nothing.
        expr=f"experiment:rftd_experience_stale:ratio_rate10m > 0.2 {RUNNING}",
        lasts="10m",
        summary="{{ $value | humanizePercentage }} of the experiences of {{ $labels.experiment }} grow too old",
        series={
            'rftd_experiences_total{experiment="e",stage="produce",outcome="ok"}': "0+10x60",
            'rftd_experiences_total{experiment="e",stage="retire",outcome="stale"}': "0+4x60",
            **IS_RUNNING,
        },
        at="40m",
        labels=E,
        said="40% of the experiences of e grow too old",
    ),
    Alert(
        name="RftdStreamLagGrowing",
        expr="rftd_stream_lag_records > 1000 and deriv(rftd_stream_lag_records[15m]) > 0",
        lasts="15m",
        summary="{{ $labels.consumer_group }} falls behind on {{ $labels.stream }}",
        series={'rftd_stream_lag_records{stream="s",consumer_group="projector"}': "0+200x60"},
        at="50m",
        labels={"stream": "s", "consumer_group": "projector"},
        said="projector falls behind on s",
    ),
    Alert(
        name="RftdDeadLetters",
        expr="rftd_dead_letters_open > 0",
        summary="{{ $value }} dead letters wait for a verdict ({{ $labels.kind }})",
        series={'rftd_dead_letters_open{kind="record"}': "5x60"},
        at="1m",
        labels={"kind": "record"},
        said="5 dead letters wait for a verdict (record)",
    ),
    Alert(
        name="RftdWeightSyncOverdue",
        expr="sum by (instance, experiment) (increase(rftd_weight_sync_overdue_total[15m])) >= 3",
        severity="critical",
        summary="explorers of {{ $labels.experiment }} waited for weights longer than sync_timeout",
        series={'rftd_weight_sync_overdue_total{experiment="e",then="waits"}': "0+1x60"},
        at="20m",
        labels=E,
        said="explorers of e waited for weights longer than sync_timeout",
    ),
    Alert(
        name="RftdWeightSyncFailing",
        # What fell back has reached explorers, by a slower way.
        expr="sum by (instance, experiment, reason)"
        ' (increase(rftd_weight_sync_failures_total{reason!="fell_back"}[15m])) >= 3',
        severity="critical",
        summary="weight syncs of {{ $labels.experiment }} fail: {{ $labels.reason }}",
        series={'rftd_weight_sync_failures_total{experiment="e",method="checkpoint",reason="load"}': "0x10 0+1x60"},
        at="20m",
        labels={**E, "reason": "load"},
        said="weight syncs of e fail: load",
    ),
    Alert(
        name="RftdRolloutErrorsHigh",
        expr="experiment:rftd_rollout_error:ratio_rate10m > 0.05",
        lasts="10m",
        summary="{{ $value | humanizePercentage }} of the rollouts of {{ $labels.experiment }} fail",
        series={
            'rftd_rollouts_total{experiment="e",taskset="t",outcome="ok"}': "0+9x60",
            'rftd_rollouts_total{experiment="e",taskset="t",outcome="timeout"}': "0+1x60",
        },
        at="30m",
        labels=E,
        said="10% of the rollouts of e fail",
    ),
    Alert(
        name="RftdNonFiniteSteps",
        expr="increase(rftd_train_nonfinite_steps_total[15m]) > 0",
        severity="critical",
        summary="{{ $labels.experiment }} skipped steps whose loss or gradient was not finite",
        series={'rftd_train_nonfinite_steps_total{experiment="e"}': "0 0 0 1x60"},
        at="10m",
        labels=E,
        said="e skipped steps whose loss or gradient was not finite",
    ),
    Alert(
        name="RftdPolicyCollapse",
        # Whoever has solved the task answers without a doubt.
        expr='(rftd_train_entropy_nats < 0.02 or rftd_train_kl_nats{ref="behaviour"} > 0.5)'
        f" unless on (instance, experiment) rftd_signal_solved == 1 {RUNNING}",
        lasts="10m",
        summary="entropy or KL of {{ $labels.experiment }} is out of range",
        series={'rftd_train_entropy_nats{experiment="e"}': "0.01x60", **IS_RUNNING},
        at="15m",
        labels=E,
        said="entropy or KL of e is out of range",
    ),
    Alert(
        name="RftdProjectionBehind",
        expr="rftd_projection_lag_events > 10000",
        lasts="10m",
        summary="the tables are {{ $value }} events behind the log",
        series={'rftd_projection_lag_events{projection="all"}': "20000x60"},
        at="15m",
        labels={"projection": "all"},
        said="the tables are 20000 events behind the log",
    ),
    Alert(
        name="RftdCheckpointOld",
        # Of one that has saved none yet, too; but not of one that only evaluates, or that was just resumed.
        expr="time() - rftd_experiment_state_timestamp_seconds > 7200"
        " unless on (instance, experiment) time() - rftd_checkpoint_last_success_timestamp_seconds <= 7200"
        f" and on (instance, experiment) rftd_train_step > 0 {RUNNING}",
        lasts="10m",
        summary="no checkpoint of {{ $labels.experiment }} for two hours",
        series={
            'rftd_experiment_state_timestamp_seconds{experiment="e"}': "0x200",
            'rftd_train_step{experiment="e"}': "0+1x200",
            **IS_RUNNING,
        },
        at="150m",
        labels=E,
        said="no checkpoint of e for two hours",
    ),
    Alert(
        name="RftdDiskShort",
        expr="rftd_disk_short == 1",
        severity="critical",
        summary="experiments pause for want of space ({{ $labels.cause }})",
        series={'rftd_disk_short{cause="disk"}': "1x60"},
        at="1m",
        labels={"cause": "disk"},
        said="experiments pause for want of space (disk)",
    ),
    Alert(
        name="RftdTablesUnreadable",
        expr="rftd_state_readable == 0",
        lasts="5m",
        severity="critical",
        summary="the daemon's tables do not answer",
        series={"rftd_state_readable": "0x60"},
        at="10m",
        said="the daemon's tables do not answer",
    ),
    Alert(
        name="RftdDaemonDown",
        # The others say nothing then: what is not scraped has no series.
        expr='up{job="rftd"} == 0',
        lasts="2m",
        severity="critical",
        summary="the daemon at {{ $labels.instance }} does not answer",
        series={'up{job="rftd",instance="127.0.0.1:7070"}': "1x5 0x60"},
        at="10m",
        labels={"job": "rftd", "instance": "127.0.0.1:7070"},
        said="the daemon at 127.0.0.1:7070 does not answer",
    ),
)


def made_rules() -> dict[str, Any]:
    """The rules as Prometheus reads them."""
    alerts = [
        {
            "alert": each.name,
            "expr": each.expr,
            "for": each.lasts,
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary, "runbook_url": runbook(each)},
        }
        for each in ALERTS
    ]
    recorded = [{"record": name, "expr": expr} for name, expr in RECORDED.items()]
    return {"groups": [{"name": "rftd.recording", "rules": recorded}, {"name": "rftd.alerts", "rules": alerts}]}


def runbook(alert: Alert) -> str:
    """The place of its runbook."""
    return f"{RUNBOOKS}#{alert.name.lower()}"
