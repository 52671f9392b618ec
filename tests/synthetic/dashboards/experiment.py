"""The dashboard of one experiment: learning, off-policyness, flow, machine, cost."""

from __future__ import annotations

from typing import Final

from rftd.streams.folds.worker_state import IDLE
from synthetic.dashboards.panel import EVERY, OF, Dashboard, Panel, Row

IDLE_STATES: Final = "|".join(state.value for state in IDLE)


def idle(role: str) -> str:
    """The share of its time for which a role waits for others."""
    seconds = f'rftd_role_state_seconds_total{{{OF},role="{role}"'
    waits = f'{seconds},state=~"{IDLE_STATES}"}}'
    return f"(sum(rate({waits}[5m])) or vector(0)) / sum(rate({seconds}}}[5m]))"


def quantile(share: float, metric: str, by: str = "le") -> str:
    """A quantile of a histogram of the experiment."""
    return f"histogram_quantile({share:g}, sum by ({by}) (rate({metric}_bucket{{{OF}}}[{EVERY}])))"


def rate(metric: str, by: str = "") -> str:
    """The rate of a counter of the experiment."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({metric}{{{OF}}}[{EVERY}]))"


def mean(metric: str, by: str = "", *, every: str = EVERY) -> str:
    """The mean of what a histogram or a summary of the experiment counted lately."""
    parts = (f"sum by ({by}) (rate({metric}_{part}{{{OF}}}[{every}]))" for part in ("sum", "count"))
    return " / ".join(parts)


def _bottleneck() -> str:
    """A number for each of `_WAITING`. Nobody is a bottleneck in a pause, or where no rollouts are waited for."""
    waits = f"(({idle('trainer')} > bool 0.3) + 2 * ({idle('explorer')} > bool 0.3))"
    running = f'rftd_experiment_state{{{OF},state="running"}}'
    explores = f'rftd_experiment_last_progress_timestamp_seconds{{{OF},role="explorer"}}'
    paused = f'4 * sum(rftd_experiment_state{{{OF},state="paused"}})'
    nothing = f"5 * sum({running} unless on (instance, experiment) {explores})"
    return f"({waits} and on () {running} and on () {explores}) or {paused} or {nothing}"


_WAITING: Final = {
    0: "balanced",
    1: "explorers are the bottleneck",
    2: "the trainer is the bottleneck",
    3: "both wait: see rftd why",
    4: "it is paused: see rftd why",
    5: "no rollouts of its own",
}
BOTTLENECK: Final = _bottleneck()
LEARNING: Final = Row(
    title="Learning",
    panels=[
        Panel(
            title="Bottleneck",
            text="Who waits for whom for more than 30 % of the last five minutes.",
            queries={"": BOTTLENECK},
            kind="stat",
            words=_WAITING,
        ),
        Panel(
            title="Reward of the batch",
            text="Mean and quantiles of the rewards of the batch that was trained last.",
            queries={
                "mean": f"rftd_rollout_reward_mean{{{OF}}}",
                "p{{share}}": f"rftd_rollout_reward_quantile{{{OF}}}",
            },
        ),
        Panel(
            title="Reward of rollouts",
            text="Mean reward of the rollouts that ended, trained or not.",
            queries={
                "mean": f"({rate('rftd_rollout_reward_gained_total')} - {rate('rftd_rollout_reward_lost_total')})"
                # Not the count of the histogram: OpenMetrics has none beside bounds below zero.
                f' / sum(rate(rftd_rollout_reward_bucket{{{OF},le="+Inf"}}[{EVERY}]))'
            },
        ),
        Panel(
            title="Held-out score",
            text="The last evaluation on each held-out taskset.",
            queries={"{{evalset}}": f"rftd_eval_score{{{OF}}}"},
        ),
        Panel(
            title="Loss",
            text="Terms of the loss of the last step.",
            queries={"{{loss}}": f"rftd_train_loss{{{OF}}}"},
        ),
        Panel(
            title="Gradient",
            text="Global norm before clipping.",
            queries={"norm": f"rftd_train_grad_norm{{{OF}}}"},
        ),
        Panel(
            title="Learning rate",
            text="That of the last step.",
            queries={"rate": f"rftd_train_learning_rate{{{OF}}}"},
            unit="sci",
        ),
        Panel(
            title="Nothing is learnt",
            text="The cause for which the newest batches teach nothing; `rftd why` has the field to change. "
            "`solved` is no fault: every group is answered right.",
            queries={"{{cause}}": f"rftd_signal_lost{{{OF}}}", "solved": f"rftd_signal_solved{{{OF}}}"},
            on_failure=True,
        ),
        Panel(
            title="Batches without a signal",
            text="Shares of the last batch: groups with equal rewards; rollouts that were cut or empty.",
            queries={"{{of}}": f"rftd_signal_ratio{{{OF}}}"},
            unit="percentunit",
        ),
        Panel(
            title="Groups without a signal",
            text="Groups per second whose rewards are all equal.",
            queries={"equal rewards": rate("rftd_group_zero_variance_total")},
            unit="ops",
        ),
        Panel(
            title="Response length",
            text="Median and 95th percentile of the tokens of a response.",
            queries={
                share: quantile(float(share[1:]) / 100, "rftd_rollout_response_tokens") for share in ("p50", "p95")
            },
        ),
        Panel(
            title="Turns",
            text="The model's answers in a rollout, on average.",
            queries={"mean": mean("rftd_rollout_turns")},
        ),
    ],
)
OFF_POLICY: Final = Row(
    title="Off-policyness",
    panels=[
        Panel(
            title="Staleness",
            text="Versions between the weights that drew an experience and those that train on it.",
            queries={"{{le}}": f"sum by (le) (increase(rftd_experience_staleness_versions_bucket{{{OF}}}[{EVERY}]))"},
            kind="heatmap",
        ),
        Panel(
            title="Staleness, p95",
            text="95th percentile of the batches of the last minutes.",
            queries={
                "p95": quantile(0.95, "rftd_experience_staleness_versions"),
                "bound": f"rftd_experiment_max_staleness_versions{{{OF}}}",
            },
        ),
        Panel(
            title="Age",
            text="Age of an experience when a batch takes it.",
            queries={
                share: quantile(float(share[1:]) / 100, "rftd_experience_age_seconds") for share in ("p50", "p95")
            },
            unit="s",
        ),
        Panel(
            title="KL",
            text="Mean per token against the policy that drew the tokens, and against the reference.",
            queries={"{{ref}}": f"rftd_train_kl_nats{{{OF}}}"},
        ),
        Panel(
            title="Clipped tokens",
            text="Share of the tokens whose ratio was clipped.",
            queries={"{{side}}": f"rftd_train_clip_ratio{{{OF}}}"},
            unit="percentunit",
        ),
        Panel(
            title="Entropy",
            text="Mean per-token entropy of the policy.",
            queries={"nats": f"rftd_train_entropy_nats{{{OF}}}"},
        ),
    ],
)
FLOW: Final = Row(
    title="Flow",
    panels=[
        Panel(
            title="Rollouts by outcome",
            text="Rollouts that ended.",
            queries={"{{outcome}}": rate("rftd_rollouts_total", "outcome")},
            unit="ops",
            stacked=True,
        ),
        Panel(
            title="Experiences by step of their life",
            text="Produced, planned, and retired with the reason.",
            queries={"{{stage}} {{outcome}}": rate("rftd_experiences_total", "stage, outcome")},
            unit="ops",
        ),
        Panel(
            title="Buffer",
            text="Experiences that wait, that rest, and whose groups are open, by priority; and the room there is.",
            queries={
                "{{buffer}} {{priority}}": f"rftd_buffer_experiences{{{OF}}}",
                "capacity": f"rftd_buffer_capacity_experiences{{{OF}}}",
            },
        ),
        Panel(
            title="Rollout time",
            text="Wall time of one rollout.",
            queries={
                share: quantile(float(share[1:]) / 100, "rftd_rollout_duration_seconds") for share in ("p50", "p95")
            },
            unit="s",
        ),
        Panel(
            title="Groups given up",
            text="Groups that were closed before they were over, by code: `rftd explain CODE`.",
            queries={"{{code}}": rate("rftd_groups_given_up_total", "code")},
            unit="ops",
            on_failure=True,
        ),
    ],
)
MACHINE: Final = Row(
    title="Machine",
    panels=[
        Panel(
            title="Trainer by state",
            text="Share of its time in each state.",
            queries={
                "{{state}}": f'sum by (state) (rate(rftd_role_state_seconds_total{{{OF},role="trainer"}}[{EVERY}]))'
            },
            stacked=True,
        ),
        Panel(
            title="Explorers by state",
            text="Explorers in each state, on average.",
            queries={
                "{{state}}": f'sum by (state) (rate(rftd_role_state_seconds_total{{{OF},role="explorer"}}[{EVERY}]))'
            },
            stacked=True,
        ),
        Panel(
            title="Idle",
            text="Share of its time for which a role waits for another.",
            queries={role: idle(role) for role in ("trainer", "explorer")},
            unit="percentunit",
        ),
        Panel(
            title="Tokens by worker",
            text="Tokens that are drawn or trained per second.",
            queries={"{{role}} {{slot}}": rate("rftd_worker_tokens_total", "role, slot")},
            unit="ops",
        ),
        Panel(
            title="Memory by worker",
            text="Resident memory of a worker and the processes that it started.",
            queries={"{{role}} {{slot}}": f"rftd_worker_memory_bytes{{{OF}}}"},
            unit="bytes",
        ),
        Panel(
            title="Processor by worker",
            text="Cores that a worker and the processes that it started use.",
            queries={"{{role}} {{slot}}": rate("rftd_worker_cpu_seconds_total", "role, slot")},
        ),
        Panel(
            title="Weight versions",
            text="The newest that was published, the oldest that an explorer serves.",
            queries={"{{holder}}": f"rftd_weight_version{{{OF}}}"},
        ),
        Panel(
            title="Weight sync",
            text="Mean time of each phase: publish by the trainer; transfer, load and resume by an explorer.",
            queries={"{{method}} {{phase}}": mean("rftd_weight_sync_duration_seconds", "method, phase", every="5m")},
            unit="s",
        ),
        Panel(
            title="Weight syncs that failed",
            text="Per second, by reason: see the runbook of RftdWeightSyncFailing.",
            queries={"{{reason}}": rate("rftd_weight_sync_failures_total", "reason")},
            unit="ops",
        ),
        Panel(
            title="Step time",
            text="Mean wall time of one training step.",
            queries={"mean": mean("rftd_train_step_duration_seconds", every="5m")},
            unit="s",
        ),
        Panel(
            title="Checkpoint time",
            text="Mean time to a durable checkpoint, since the daemon began.",
            queries={
                "mean": f"rftd_checkpoint_duration_seconds_sum{{{OF}}} / rftd_checkpoint_duration_seconds_count{{{OF}}}"
            },
            unit="s",
        ),
        Panel(
            title="Since the last checkpoint",
            text="What a loss of the machine would cost.",
            queries={"age": f"time() - rftd_checkpoint_last_success_timestamp_seconds{{{OF}}}"},
            unit="s",
        ),
        Panel(
            title="Since the last heartbeat",
            text="Age of the newest heartbeat of a role.",
            queries={"{{role}}": f"time() - rftd_experiment_heartbeat_timestamp_seconds{{{OF}}}"},
            unit="s",
        ),
    ],
)
COST: Final = Row(
    title="Cost",
    panels=[
        Panel(
            title="Accelerators held",
            text="Accelerators that the workers of a role hold; one without a GPU counts as one of kind cpu.",
            queries={
                "{{role}} {{accelerator}}": "sum by (role, accelerator) "
                f"(rate(rftd_accelerator_seconds_total{{{OF}}}[5m]))"
            },
        ),
        Panel(
            title="Accelerator hours",
            text="All that its workers have held, from the first on.",
            queries={"{{accelerator}}": f"sum by (accelerator) (rftd_accelerator_seconds_total{{{OF}}}) / 3600"},
            unit="h",
        ),
        Panel(
            title="Dollars",
            text="Those hours times `rftd serve --price`, and for each training step.",
            queries={
                "in all": f"sum(rftd_cost_usd_total{{{OF}}})",
                "each step": f"sum(rftd_cost_usd_total{{{OF}}}) / sum(rftd_train_step{{{OF}}} > 0)",
            },
            unit="currencyUSD",
        ),
    ],
)
MARKS: Final = {
    "weights published": f'changes(rftd_weight_version{{{OF},holder="trainer"}}[1m]) > 0',
    "checkpoint": f"changes(rftd_checkpoint_last_success_timestamp_seconds{{{OF}}}[1m]) > 0",
    "paused": f'rftd_experiment_state{{{OF},state="paused"}} == 1',
    "daemon started": 'changes(process_start_time_seconds{instance=~"$daemon"}[1m]) > 0',
}
"""Marks on the dashboard of one experiment, by their names."""


EXPERIMENT: Final = Dashboard(
    uid="rftd-experiment",
    title="rftd / Experiment",
    rows=[LEARNING, OFF_POLICY, FLOW, MACHINE, COST],
    of_experiment=True,
    marks=MARKS,
)
