"""The dashboards of the daemon: all experiments, and the streams of the log."""

from __future__ import annotations

from typing import Final

from synthetic.dashboards.panel import EVERY, Dashboard, Panel, Row

OVERVIEW: Final = Dashboard(
    uid="rftd-overview",
    title="rftd / Overview",
    rows=[
        Row(
            title="Experiments",
            panels=[
                Panel(
                    title="Experiments by state",
                    text="Those that have not ended, or ended in the last hour.",
                    queries={"{{state}}": "sum by (state) (rftd_experiment_state)"},
                    kind="stat",
                ),
                Panel(
                    title="Progress",
                    text="Steps trained, of those that the experiment has in all.",
                    queries={"{{experiment}}": "rftd_train_step / (rftd_train_steps_planned > 0)"},
                    unit="percentunit",
                ),
                Panel(
                    title="Alerts",
                    text="Alerts of rftd that fire; each names its runbook.",
                    queries={"{{alertname}} {{experiment}}": 'ALERTS{alertname=~"Rftd.*",alertstate="firing"}'},
                    on_failure=True,
                ),
                Panel(
                    title="Reward",
                    text="Mean reward of the batch that was trained last.",
                    queries={"{{experiment}}": "rftd_rollout_reward_mean"},
                ),
                Panel(
                    title="Held-out score",
                    text="The last evaluation on each held-out taskset.",
                    queries={"{{experiment}} {{evalset}}": "rftd_eval_score"},
                ),
                Panel(
                    title="Rollouts",
                    text="Rollouts that ended, whatever their outcome.",
                    queries={"{{experiment}}": f"sum by (experiment) (rate(rftd_rollouts_total[{EVERY}]))"},
                    unit="ops",
                ),
                Panel(
                    title="Trained tokens",
                    text="Tokens that took part in a gradient.",
                    queries={"{{experiment}}": f"sum by (experiment) (rate(rftd_train_tokens_total[{EVERY}]))"},
                    unit="ops",
                ),
                Panel(
                    title="Queue",
                    text="Places of the experiments that wait for their turn.",
                    queries={"{{experiment}}": "rftd_experiment_queue_position"},
                    on_failure=True,
                ),
                Panel(
                    title="Waited for its turn",
                    text="Time from the submission until an experiment began, or now.",
                    queries={"{{experiment}}": "rftd_experiment_queue_wait_seconds"},
                    unit="s",
                ),
                Panel(
                    title="Cost",
                    text="Accelerator hours times `rftd serve --price`.",
                    queries={"{{experiment}}": "sum by (experiment) (rftd_cost_usd_total)"},
                    unit="currencyUSD",
                ),
            ],
        ),
        Row(
            title="Daemon",
            panels=[
                Panel(
                    title="Memory",
                    text="Resident memory of the daemon.",
                    queries={"daemon": "process_resident_memory_bytes"},
                    unit="bytes",
                ),
                Panel(
                    title="Processor",
                    text="Cores that the daemon uses.",
                    queries={"daemon": f"rate(process_cpu_seconds_total[{EVERY}])"},
                ),
                Panel(
                    title="Requests",
                    text="Requests to the API, by route and status.",
                    queries={
                        "{{route}} {{status}}": f"sum by (route, status) (rate(rftd_http_requests_total[{EVERY}]))"
                    },
                    unit="reqps",
                ),
            ],
        ),
    ],
)

STREAMS: Final = Dashboard(
    uid="rftd-streams",
    title="rftd / Streams and projections",
    rows=[
        Row(
            title="Streams",
            panels=[
                Panel(
                    title="Records produced",
                    text="Records that the log acknowledged.",
                    queries={"{{stream}}": f"sum by (stream) (rate(rftd_stream_produced_records_total[{EVERY}]))"},
                    unit="ops",
                ),
                Panel(
                    title="Lag",
                    text="Records of the log that a consumer has not taken in.",
                    queries={"{{stream}} {{consumer_group}}": "rftd_stream_lag_records"},
                ),
                Panel(
                    title="Tables behind the log",
                    text="Events that the tables do not have yet.",
                    queries={"{{projection}}": "rftd_projection_lag_events"},
                ),
                Panel(
                    title="Time to take in",
                    text="95th percentile of the time from the delivery of some records to their committed effect.",
                    queries={
                        "{{stream}} {{consumer_group}}": "histogram_quantile(0.95, sum by (le, stream, consumer_group) "
                        f"(rate(rftd_stream_handler_duration_seconds_bucket[{EVERY}])))"
                    },
                    unit="s",
                ),
                Panel(
                    title="Duplicates",
                    text="Redelivered records that were recognised and skipped.",
                    queries={
                        "{{stream}} {{consumer_group}}": "sum by (stream, consumer_group) "
                        f"(rate(rftd_stream_duplicates_total[{EVERY}]))"
                    },
                    unit="ops",
                    on_failure=True,
                ),
                Panel(
                    title="Void records",
                    text="Of processes that were replaced, and of strangers in the name of a role: `rftd verify`.",
                    queries={"{{stream}} {{cause}}": "sum by (stream, cause) (rftd_stream_void_records_total)"},
                    on_failure=True,
                ),
                Panel(
                    title="Last rebuild",
                    text="Time for which the tables were filled from the first record on.",
                    queries={"{{projection}}": "rftd_projection_rebuild_duration_seconds"},
                    unit="s",
                    on_failure=True,
                ),
                Panel(
                    title="Dead letters",
                    text="Records that a consumer could not use: `rftd dlq ls`.",
                    queries={
                        "{{stream}} {{reason}}": "sum by (stream, reason) (rftd_stream_dead_letters_total)",
                    },
                    on_failure=True,
                ),
            ],
        ),
        Row(
            title="Disk",
            panels=[
                Panel(
                    title="Free space",
                    text="Where there is least of it.",
                    queries={"free": "rftd_disk_free_bytes", "counted by the budget": "rftd_disk_used_bytes"},
                    unit="bytes",
                ),
                Panel(
                    title="Write-ahead file",
                    text="What lies in that of the embedded log.",
                    queries={"size": "rftd_log_wal_size_bytes"},
                    unit="bytes",
                ),
                Panel(
                    title="Tables readable",
                    text="1 if the tables answered at the scrape.",
                    queries={"readable": "rftd_state_readable"},
                    kind="stat",
                ),
            ],
        ),
    ],
)
