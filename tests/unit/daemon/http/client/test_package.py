"""What `from rftd import Client` costs, and what the package's top offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rftd

HEAVY = (
    "torch transformers fastapi starlette numpy sqlalchemy pydantic httpx rich yaml jinja2 rftd.streams rftd.workers"
)
MOST_MODULES = 320
"""A bare interpreter has about 60, click brings 90 more; 271 when this was written."""


def test_the_client_imports_nothing_heavy_and_few_modules() -> None:
    program = (
        f"import sys; from rftd import Client, AsyncClient, __version__, compare;"
        f" print(sorted(set({HEAVY.split()}) & set(sys.modules)), len(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=240)
    heavy, _, count = ended.stdout.rpartition(" ")
    assert heavy == "[]", ended
    assert int(count) <= MOST_MODULES


def test_every_public_name_is_importable_and_listed() -> None:
    assert set(rftd.__all__) <= set(dir(rftd))
    for name in rftd.__all__:
        assert getattr(rftd, name) is not None


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        _ = rftd.Klient
