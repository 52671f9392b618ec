"""What the Tinker service is asked with: the ids of transformers' template, and the ends that the folder names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.odd_folders import change, no_generation_settings, two_ends
from synthetic.models.tinker_rehearsal import Rehearsal, RehearsalService
from transformers import AutoTokenizer

from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.datasets.hf_tokenizer import open_tokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.engines.tinker.rollout.engine import TinkerRolloutEngine
from rftd.workers.engines.tinker.service import ServiceSampling
from rftd.workers.generation.model import Model
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.service import SERVICE

pytestmark = pytest.mark.anyio


class HearingRehearsal(Rehearsal):
    """A service that keeps what it is asked."""

    def sample(self, path: str, prompt: Sequence[int], draw: ServiceSampling) -> dict[str, Any]:
        self.heard = (list(prompt), draw)
        return super().sample(path, prompt, draw)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", seed=3, hidden_size=32, heads=2)


async def heard(folder: Path, messages: list[dict[str, str]], **sampling: Any) -> tuple[list[int], ServiceSampling]:
    """The prompt and the settings that the service gets for a conversation."""
    service = HearingRehearsal()
    path = service.save("v0", service.new_run("org/tiny"), "sampler_weights")
    spec = ModelSpec(path=str(folder), max_model_len=128, max_prompt_tokens=100, max_response_tokens=4)
    engine = TinkerRolloutEngine(RehearsalService(service), spec)
    await engine.load_weights(
        WeightsRef(version=1, generation=0, path=path, manifest="m", checksum="name:1", method=SERVICE)
    )
    model = Model(
        engine,
        open_tokenizer(str(folder)),
        spec=spec,
        sampling=SamplingSpec(max_tokens=4, **sampling),
        rollout=UUID(int=1),
    )
    await model.chat([Message(message["role"], message["content"]) for message in messages])
    await engine.close()
    return service.heard


ASK = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2?"}]


async def test_a_rollout_is_asked_in_the_ids_that_transformers_gives(folder: Path) -> None:
    prompt, _ = await heard(folder, ASK)
    inner = AutoTokenizer.from_pretrained(folder)
    assert prompt == inner.apply_chat_template(ASK, add_generation_prompt=True, return_dict=False)


async def test_it_ends_where_the_folder_says_and_not_at_the_services_one_end_alone(folder: Path) -> None:
    """Rows are trained to end at each of them, and torch and vLLM stop there too."""
    _, plain = await heard(folder, ASK)
    assert plain.stop is None, "the service knows this end"
    _, texts = await heard(folder, ASK, stop=("so",))
    assert texts.stop == ("so", "<eos>")
    two_ends(folder)
    _, plain = await heard(folder, ASK)
    assert plain.stop == (2, 5)
    _, texts = await heard(folder, ASK, stop=("so",))
    assert texts.stop == ("so", "<eos>", "<|user|>")


@pytest.mark.parametrize("ends", [None, 2, [2]])
async def test_one_end_is_left_to_the_service(folder: Path, ends: object) -> None:
    if ends is None:
        no_generation_settings(folder)
    else:
        change(folder, "generation_config.json", eos_token_id=ends)
    _, plain = await heard(folder, ASK)
    assert plain.stop is None
