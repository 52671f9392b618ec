"""Tests build these instead of real runs: logs, daemons, deciders' worlds, models, and the faults that strike them.

`tests/` is on the path (`tests/conftest.py`; a bench or a torture program appends it), so every reader imports
`synthetic.<subject>.<file>`. Each folder below is one subject:

    log/        records without a daemon. `recorder` writes drafts at known positions, `synthetic_run` one experiment,
                `busy_run` a run that is looked at before its end, `long_history` a run of any length. `garbage` and
                `mutation` are records that nobody should have written; `readers` and `rebuilds` read them all.
                `scan_chain` checks the embedded log's file from end to end; `checker_rules` are the rules of verify;
                `lag` counts what the tables lack; `repeating_log` takes an id as often as it comes.
    worlds/     deciders without processes, in virtual time. `desk` is one experiment's folded state, and `signal_lab`
                trains its batches; `entries` what a policy sees; `policy_world` and `sync_model` let dice take
                the turns; `hold_claims` counts each hold's claim anew. `launchers` are what the contract of
                launchers needs of each, `bench` a fleet whose processes do nothing.
    models/     what torch engines train: `tiny_models`, `families` of architectures, `loss_tokens` and `pair_tokens`
                for losses, `algorithm_batches` for every algorithm, `plain_loops` that train as the papers write it.
                `scripted_engine` only says what it is told to; its endpoint is there too. `foreign_checkpoints` are
                those that other trainers write; `gpu_hosts` are machines with GPUs; `vllm_architectures` are those
                that vLLM runs, `vllm_engines` start it, and `policy_bench` has transformers beside
                one.
    daemon/     the daemon in parts and whole. `experiment_files`; `config_fields` are those of the schema;
                `log_operations` and `parts` (log, tables and API, no workers), `served_daemon` on a port,
                `command_line`, `terminal` (a real one, of any size), `http_probe`,
                `fork_desk` (a supervisor on fake engines); `scene` is the real daemon with real worker processes,
                `torch_world` puts it on torch; `third_party` installs plug-ins. `gauges` holds a scrape against a
                page, `prometheus` is a real server that scrapes. `stranger` and `gate` answer where no daemon is
                ready; `hostile_texts` are what strangers write; `doctor_faults` spoil a `doctor_world`, one at a time.
    faults/     what breaks below a log. `shaky_disk`, `power_loss`, `nth_failure` and `nth_call` strike the n-th
                operation, `log_workload` is written meanwhile, `damage` flips bytes, `tcp_proxy` breaks networks,
                `small_volume` is a file system that fills up.
    deaths/     processes that end at any moment: `armed` fault points, `killing` with a `witness` of what was
                acknowledged, `struck_worker` and `zombie_trainers` that wake after their replacement.
    servers/    real Kafka and Postgres servers: `cluster_scene`, `three_brokers`, and `end_servers`, which leaves none.
                `disturbances` strike a cluster and the run on it, and `foreign_sink` writes there in transactions.
                `otlp_receiver` and `kept_spans` take traces, in the test's process.
    tracking/   trackers: a run that is `tracked` by a follower that dies, `live` ones of a real daemon, and what was
                written, read back: `event_files` of TensorBoard, `wandb_files`, `mlflow_runs`,
                `swanlab_files`, `trackio_runs`.
    docs/       the documents as tests: `pages` cuts them, `package` installs their third parties, `world` runs them.
    dashboards/ the dashboards and rules of `ops/`, as data: panels, alerts with what makes each fire, and the files.
    until.py    waits for what nothing announces.
"""
