"""`TokenHolder`: a named token with its limits and what is taken of them."""

from __future__ import annotations

from typing import NamedTuple

from rftd.daemon.trust.quota import Quota, QuotaUse
from rftd.daemon.trust.token_file import TokenEntry


class TokenHolder(NamedTuple):
    """A named token in use."""

    entry: TokenEntry
    quota: Quota
    """Its limits, those of its role included."""
    use: QuotaUse
