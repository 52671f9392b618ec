"""The runs of an MLflow server, by MLflow's own client."""

from __future__ import annotations

from typing import Any

from synthetic.tracking.tracked import Shown, as_shown


def runs_of(uri: str, experiment: str) -> dict[str, Any]:
    """The runs of an experiment of ours, by role."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    places = [place.experiment_id for place in client.search_experiments()]
    return {
        run.data.tags["role"]: run
        for run in client.search_runs(places)
        if run.data.tags["rftd.run"].startswith(experiment)
    }


def shown_at(uri: str, experiment: str) -> list[Shown]:
    """Every figure of an experiment of ours, as often as the server has it."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    shown = []
    for role, run in runs_of(uri, experiment).items():
        for key in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, key)
            shown += [as_shown("mlflow", role, entry.step, key, entry.value) for entry in history]
    return sorted(shown, key=lambda figure: (figure.run, figure.step, figure.name))
