"""`MlflowRuns`: runs of an MLflow server; points that are there already, from before a kill, are not sent again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rftd.ops.errors import ConfigError, UnreachableError
from rftd.workers.tracking.point import COLUMNS, Point
from rftd.workers.tracking.registry import SERVICES
from rftd.workers.tracking.tracker import Kept, Opening

_MARK: Final = "rftd.run"
"""The tag by which a run is found again."""
_FORBIDDEN: Final = re.compile(r"[^\w./ :-]", re.ASCII)
_BATCH: Final = 500
_PARAMS: Final = 50
_VALUE_CHARS: Final = 500
"""The longest text of a parameter that every release of the server takes."""
_TABLES: Final = "mlflow.loggedArtifacts"
_MOST_TABLES: Final = 40
_STATUS: Final[Mapping[str, str]] = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


class MlflowRuns:
    """Keeps the runs of one experiment in the MLflow experiment of its project."""

    sure_at_once = True

    def __init__(self, opening: Opening) -> None:
        self._run = opening.run
        for argument, variable in (("username", "USERNAME"), ("password", "PASSWORD")):
            if opening.args.get(argument):
                os.environ[f"MLFLOW_TRACKING_{variable}"] = str(opening.args[argument])
        # Whoever calls tries again, and says why; the library would try for many minutes without a word.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        self._uri = str(opening.args.get("uri") or os.environ.get("MLFLOW_TRACKING_URI") or SERVICES["mlflow"][1])
        self._client: Any = None
        self._ids: dict[str, str] = {}
        self._resumed = True
        """True until the first points are written: a process before this one may have sent some of them."""

    def open(self, kept: Kept) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        self._ids = {}
        for role in self._run.roles:
            self._ids[role] = self._asked(self._found_or_made, role)
        self._resumed = True

    def write(self, points: Sequence[Point]) -> None:
        for role, id in self._ids.items():
            own = [point for point in points if self._run.run_of(point) == role]
            metrics = [metric for point in own for metric in _metrics(point)]
            if self._resumed:
                metrics = self._asked(self._missing, id, metrics)
            for first in range(0, len(metrics), _BATCH):
                self._asked(self._client.log_batch, id, metrics=metrics[first : first + _BATCH])
            for point in own:
                if point.samples:
                    self._log_table(id, point)
                if point.remark:
                    self._asked(self._client.set_tag, id, f"rftd.remark.{point.number}", point.remark[:_VALUE_CHARS])
        self._resumed = False

    def _log_table(self, id: str, point: Point) -> None:
        """Writes the table as an artifact that `mlflow.load_table` reads, under a name of its step."""
        path = f"{point.table}/{point.step:08d}.json"
        table = {"columns": list(COLUMNS), "data": [sample.cells() for sample in point.samples]}
        self._asked(self._client.log_dict, id, table, path)
        # The server's page and `mlflow.load_table` find tables by this tag, whose length is bounded.
        listed = json.loads(self._asked(self._client.get_run, id).data.tags.get(_TABLES, "[]"))
        entry = {"path": path, "type": "table"}
        if entry not in listed:
            self._asked(self._client.set_tag, id, _TABLES, json.dumps([*listed, entry][-_MOST_TABLES:]))

    def settle(self, *, surely: bool) -> Kept:
        return {}

    def close(self, ended: str) -> None:
        if ended in _STATUS:
            for id in self._ids.values():
                self._asked(self._client.set_terminated, id, _STATUS[ended])

    def _found_or_made(self, role: str) -> str:
        from mlflow.entities import Param

        client = self._client
        experiment = client.get_experiment_by_name(self._run.project)
        experiment_id = client.create_experiment(self._run.project) if experiment is None else experiment.experiment_id
        mark = f"{self._run.experiment}-{role}"
        runs = client.search_runs([experiment_id], filter_string=f"tags.`{_MARK}` = '{mark}'", max_results=1)
        params = [Param(_allowed(name), str(value)[:_VALUE_CHARS]) for name, value in _leaves(self._run.config)]
        if runs:
            run = runs[0]
            # A process before this one, or the server, may have ended before all of them were there.
            if len(run.data.params) < len(params):
                self._log_params(run.info.run_id, params)
            return str(run.info.run_id)
        tags = {_MARK: mark, "group": self._run.group, "role": role, "rftd.digest": self._run.digest}
        run = client.create_run(experiment_id, run_name=self._run.title(role), tags=tags)
        self._log_params(run.info.run_id, params)
        return str(run.info.run_id)

    def _log_params(self, id: str, params: Sequence[Any]) -> None:
        for first in range(0, len(params), _PARAMS):
            self._client.log_batch(id, params=params[first : first + _PARAMS])

    def _missing(self, id: str, metrics: list[Any]) -> list[Any]:
        """Those of the metrics that the run has not got: a process before this one may have sent some."""
        present: dict[str, set[int]] = {}
        for metric in metrics:
            if metric.key not in present:
                present[metric.key] = {known.step for known in self._client.get_metric_history(id, metric.key)}
        return [metric for metric in metrics if metric.step not in present[metric.key]]

    def _asked(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """The answer of the server. Raises UnreachableError for one that may be there again, and ConfigError."""
        from mlflow.exceptions import MlflowException

        try:
            return call(*args, **kwargs)
        except MlflowException as error:
            status = error.get_http_status_code()
            if status in (401, 403) or "401" in str(error)[:200] or "403" in str(error)[:200]:
                what = f"MLflow at {self._uri} refuses the user or the password"
                fix = "export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                raise ConfigError(what, field="monitor.monitor_args", fix=fix) from None
            if status >= 500 or status == 429:
                what = f"MLflow at {self._uri} does not answer: {str(error)[:200]}"
                raise UnreachableError(what, fix="start it; the tracker goes on by itself") from None
            raise


def _metrics(point: Point) -> Iterator[Any]:
    from mlflow.entities import Metric

    for name, value in point.figures.items():
        yield Metric(_allowed(name), value, point.time_ns // 10**6, point.step)


def _allowed(name: str) -> str:
    """The name with only what MLflow allows in it, as Trinity-RFT writes it."""
    return _FORBIDDEN.sub("_", name.replace("@", "_at_"))[:250]


def _leaves(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(config, Mapping) and config:
        for name, value in config.items():
            yield from _leaves(value, f"{path}.{name}" if path else str(name))
    elif path:
        yield path, config
