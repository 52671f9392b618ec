"""Chance that a failing test repeats."""

from __future__ import annotations

import random
from typing import Any

import pytest


@pytest.fixture
def chance(request: Any) -> random.Random:
    return random.Random(request.node.name)
