"""Addresses of a service: of the schemes that a tracker's library understands, also where a variable has them."""

from __future__ import annotations

import pytest

from rftd.ops.errors import ConfigError
from rftd.workers.tracking.addresses import check_addresses

ODD = "ftp://k3y-of-the-daemon/"


@pytest.mark.parametrize(
    ("kind", "environ", "args"),
    [
        ("wandb", {"WANDB_BASE_URL": "https://wandb.example"}, {}),
        ("wandb", {"WANDB_BASE_URL": ODD}, {"base_url": "http://h"}),
        ("mlflow", {"MLFLOW_TRACKING_URI": "postgresql://user:password@h/runs"}, {}),
        ("mlflow", {"MLFLOW_TRACKING_URI": "databricks://profile"}, {}),
        ("swanlab", {"SWANLAB_API_HOST": "swanlab.example:8000"}, {}),
        ("swanlab", {"SWANLAB_API_HOST": "https://swanlab.example/api"}, {}),
        ("tensorboard", {"WANDB_BASE_URL": ODD}, {}),
    ],
)
def test_an_address_of_a_known_scheme_is_accepted(kind: str, environ: dict[str, str], args: dict[str, str]) -> None:
    check_addresses(kind, args, {}, environ)


@pytest.mark.parametrize(
    ("kind", "environ", "args", "variables", "field"),
    [
        ("wandb", {"WANDB_BASE_URL": ODD}, {}, {}, "WANDB_BASE_URL"),
        ("mlflow", {"MLFLOW_TRACKING_URI": ODD}, {}, {}, "MLFLOW_TRACKING_URI"),
        ("swanlab", {"SWANLAB_API_HOST": ODD}, {}, {}, "SWANLAB_API_HOST"),
        ("mlflow", {}, {"uri": ODD}, {"uri": "OURS"}, "OURS"),
        ("wandb", {}, {"base_url": ODD}, {}, "monitor.monitor_args.base_url"),
    ],
)
def test_an_odd_address_is_refused_by_its_variable_and_never_shown(
    kind: str, environ: dict[str, str], args: dict[str, str], variables: dict[str, str], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_addresses(kind, args, variables, environ)
    error = caught.value
    assert error.field == field
    assert field in error.what
    assert "http" in str(error.fix)
    assert "k3y" not in f"{error} {error.fix}"
