"""Tiny models, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from synthetic.models.tiny_models import make_model


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def model(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = make_model(tmp_path_factory.mktemp(architecture), architecture, seed=4)
        return made[architecture]

    return model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
