"""The name of the variable that holds the key of a served experiment."""

from __future__ import annotations

from typing import Final

SERVE_KEY: Final = "RFTD_SERVE_KEY"
"""The environment variable of explorers that holds the key which clients must bring."""
