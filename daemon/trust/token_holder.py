"""`TokenHolder`: a named token with limits and current use."""

from __future__ import annotations

from typing import NamedTuple

from rftd.daemon.trust.quota import Quota, QuotaUse
from rftd.daemon.trust.token_file import TokenEntry


class TokenHolder(NamedTuple):
    """A named token with limits and current use, as shown by `rftd token ls`."""

    entry: TokenEntry
    quota: Quota
    """Limits of the token, including the limits of the role."""
    use: QuotaUse
