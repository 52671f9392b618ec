"""Access to the service: the key, read from the environment alone, the address, and the errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rftd.ops.errors import ConfigError, DataError, RftdError, UnreachableError, WorkError
from rftd.ops.outbound import web_address
from rftd.ops.redaction import MASK, Secret
from rftd.streams.spec.engines import OWNERS, ReachSpec

KEYS: Final = ("TINKER_API_KEY", "TRINITY_API_KEY")
"""Environment variables for the key; the first one set counts."""
BASE_URL: Final = "TINKER_BASE_URL"
"""Environment variable with the service's address, unless a file has one."""
VARIABLES: Final = (*KEYS, BASE_URL)
"""All environment variables read by the service's engines."""
FIELD: Final = "model.tinker"
"""Section of the experiment file with the service's settings."""
UNREADABLE: Final = -1
"""Status passed to `Access.error` for an answer that the package could not read."""
_SHOWN_CHARS: Final = 300
"""Maximum characters of the service's text in an error."""
_FITTING: Final = "install a release of tinker that fits the service"
"""Advice for answers that the package cannot read."""


class Access:
    """Key and address of the service for one process, with the errors naming them."""

    def __init__(self, key: Secret, variable: str, base_url: str) -> None:
        """`variable` is the name of the key's variable; `base_url` is empty for the service's default address."""
        self.key = key
        self.variable = variable
        self.base_url = base_url

    @classmethod
    def of(cls, base_url: str, environ: Mapping[str, str], reach: ReachSpec = OWNERS) -> Access:
        """Returns the key and address for an experiment, limited to the addresses and variables in its `reach`.

        Raises ConfigError, naming the variables and never showing a value, without a key that may be sent to the
        address.
        """
        # An explorer's own variable may differ from the package's.
        address = base_url or environ.get(BASE_URL, "").strip()
        if address:
            reach.check(address, field=f"{FIELD}.base_url", variable="" if base_url else BASE_URL)
        for variable in KEYS:
            if not _may_use(variable, address, reach):
                continue
            if key := environ.get(variable, "").strip():
                return cls(Secret(key), variable, address)
        if reach.restricted:
            raise ConfigError(
                f"no key of the Tinker service is available to this experiment for {FIELD}.base_url",
                field=FIELD,
                fix=f"ask the daemon's owner to set {KEYS[0]}, and to allow it for the service's host",
            )
        raise ConfigError(
            f"no key of the Tinker service: neither {' nor '.join(KEYS)} is set here",
            field=FIELD,
            fix=f"export {KEYS[0]} where the workers run, then restart the daemon (or the worker)",
        )

    @property
    def place(self) -> str:
        """Name of the service for messages, with its address if not the default."""
        return f"the Tinker service at {self.base_url}" if self.base_url else "the Tinker service"

    def error(self, status: int, detail: str, doing: str) -> RftdError:
        """Builds the error for a failed request; status 0: no answer; `UNREADABLE`: an answer unknown to the package.

        `detail` may quote the request: the key is masked in it. `doing` names the request in the infinitive.
        """
        text = detail.replace(self.key.reveal(), MASK)[:_SHOWN_CHARS]
        if status in (401, 403):
            return ConfigError(
                f"{self.place} refuses the key of {self.variable} ({status})",
                field=FIELD,
                fix=f"export a valid {self.variable} where the workers run, then restart the daemon (or the worker)",
            )
        if status == 402:
            return ConfigError(
                f"{self.place} requires payment ({status}): {text}", field=FIELD, fix="settle the account"
            )
        if status == UNREADABLE:
            return WorkError(f"{self.place} gave an unreadable answer to a request to {doing}: {text}", fix=_FITTING)
        if status == 422:
            return WorkError(f"{self.place} cannot read the request to {doing} ({status}): {text}", fix=_FITTING)
        if status == 0:
            return UnreachableError(
                f"{self.place} did not answer a request to {doing}: {text}",
                fix="nothing: the request is repeated; if this lasts, check the address and the network",
            )
        return WorkError(f"{self.place} did not {doing} ({status}): {text}", fix="nothing: the request is repeated")

    def refused_key_error(self, detail: str) -> ConfigError:
        """Builds the error for a key refused by the package before sending."""
        text = detail.replace(self.key.reveal(), MASK)[:_SHOWN_CHARS]
        return ConfigError(
            f"{self.variable} is not a valid key of the Tinker service: {text}",
            field=FIELD,
            fix=f"export a valid {self.variable} where the workers run, then restart the daemon (or the worker)",
        )

    def unknown_model_error(self, base_model: str, detail: str) -> ConfigError:
        """Builds the error for a model unknown to the service."""
        text = detail.replace(self.key.reveal(), MASK)[:_SHOWN_CHARS]
        return ConfigError(
            f"{self.place} does not know the model {base_model!r}: {text}",
            field=f"{FIELD}.base_model",
            fix="write the name of a model it offers, such as Qwen/Qwen3-8B",
        )

    def forgotten_error(self, path: str, detail: str) -> DataError:
        """Builds the error for a saved state that no longer exists at the service."""
        text = detail.replace(self.key.reveal(), MASK)[:_SHOWN_CHARS]
        return DataError(
            f"{self.place} has forgotten {path}: {text}",
            where=path,
            fix="nothing: training continues from the newest checkpoint still available there",
        )


def _may_use(variable: str, base_url: str, reach: ReachSpec) -> bool:
    """True if a variable's key may be read and sent to the address, or to the default address if empty."""
    if not base_url:
        return reach.may_read(variable)
    return reach.may_send(variable, web_address(base_url, field=f"{FIELD}.base_url"))
