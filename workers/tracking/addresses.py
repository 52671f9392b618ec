"""`address_fault` finds addresses outside the schemes of a tracker's library, before and after variables are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from rftd.ops.errors import ConfigError

_WEB: Final = ("http", "https")
"""Schemes of web addresses."""
_STORES: Final = ("file", "sqlite", "postgresql", "mysql", "mssql", "databricks", "databricks-uc")
"""Schemes of MLflow besides http; a database's may be followed by `+DRIVER`."""
_BARE: Final = ("databricks", "databricks-uc", "uc")
"""Addresses of MLflow without a scheme."""
_FIX: Final = "begin it with http:// or https://, and a host"
"""Advice for a web address."""
_MLFLOW_FIX: Final = f"{_FIX}; or write file:///FOLDER, or the URL of a database such as sqlite:////FOLDER/FILE.db"
"""Advice for an address of MLflow."""

ADDRESSES: Final[Mapping[str, tuple[str, str]]] = {
    "wandb": ("base_url", "WANDB_BASE_URL"),
    "mlflow": ("uri", "MLFLOW_TRACKING_URI"),
    "swanlab": ("", "SWANLAB_API_HOST"),
}
"""For each tracker with a service, the argument and the variable with the address; empty: no argument."""


class AddressFault(NamedTuple):
    """A fault of an address in words, never with the address itself: a variable's content may be secret."""

    problem: str
    """Text of the problem."""
    fix: str
    """Advice to the user."""


def address_fault(kind: str, text: str) -> AddressFault | None:
    """Returns the fault of a tracker's address `text`; None for an address that the tracker's library understands."""
    try:
        parts = urlsplit(text.strip())
        host = parts.hostname
        _ = parts.port
    except ValueError:
        return AddressFault("is no http address", _FIX)
    if parts.scheme in _WEB:
        return None if host else AddressFault("names no host", _FIX)
    if kind == "swanlab":
        # SwanLab's library completes a host without a scheme.
        return AddressFault("is no http address", _FIX) if "://" in text else None
    if kind != "mlflow":
        return AddressFault("is no http address", _FIX)
    if text in _BARE or text.startswith("/") or parts.scheme.partition("+")[0] in _STORES:
        return None
    return AddressFault("is not the address of an MLflow server", _MLFLOW_FIX)


def check_addresses(
    kind: str, args: Mapping[str, Any], variables: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    """Raises ConfigError for a faulty address of a tracker, from its arguments or from the environment.

    `args` are the arguments with their variables read, `variables` the names of these variables by argument.
    """
    argument, own_variable = ADDRESSES.get(kind, ("", ""))
    if argument and args.get(argument):
        variable = variables.get(argument, "")
        text = str(args[argument])
    else:
        variable = own_variable
        text = environ.get(own_variable, "") if own_variable else ""
    fault = address_fault(kind, text) if text else None
    if fault is not None:
        field = variable or f"monitor.monitor_args.{argument}"
        raise ConfigError(f"the tracker {kind!r}: {field} {fault.problem}", field=field, fix=fault.fix)
