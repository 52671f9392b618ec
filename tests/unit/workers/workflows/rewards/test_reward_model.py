"""`reward_model`: the scores of transformers' own forward, batched, in a process of its own; refusals with reasons."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from rftd.ops.errors import ConfigError, DataError, RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.models.tiny_model import VOCABULARY_TOKENS, make_tiny_model, make_tokenizer
from rftd.workers.workflows.rewards import reward_model
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.scorer import open_scorer

RESPONSES = ["7", "a longer answer", "x" * 40, "no", "yes, certainly", "4 + 3 = 7"]


def task(prompt: str = "3 + 4?") -> Task:
    return Task(taskset="t", row=6, epoch=0, prompt=prompt, messages=(Message("user", prompt),), truth="", workflow="w")


def saved(folder: Path, *, labels: int = 1, broken: bool = False) -> Path:
    tokenizer = make_tokenizer()
    config = Qwen2Config(
        vocab_size=VOCABULARY_TOKENS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        num_labels=labels,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(1)
    model = Qwen2ForSequenceClassification(config)
    if broken:
        model.score.weight.data.fill_(float("nan"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


async def scores(folder: Path, responses: list[str], **arguments: object) -> list[float]:
    scorer = open_scorer("reward_model", {"path": str(folder), **arguments})
    assert not scorer.quick
    return [result.value for result in await asyncio.gather(*(scorer.score(each, task()) for each in responses))]


@pytest.mark.slow
def test_scores_are_those_of_the_models_own_forward(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    given = asyncio.run(scores(folder, RESPONSES, batch_size=4))
    model = Qwen2ForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = make_tokenizer()
    for response, score in zip(RESPONSES, given, strict=True):
        said = [{"role": "user", "content": "3 + 4?"}, {"role": "assistant", "content": response}]
        text = tokenizer.apply_chat_template(said, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            assert score == pytest.approx(model(ids).logits.item(), abs=1e-5)
    assert len(set(given)) == len(given)


@pytest.fixture
def changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder became another one after it was looked at."""
    monkeypatch.setattr(reward_model, "check_scoring_model", lambda *_, **__: None)


@pytest.mark.slow
@pytest.mark.usefixtures("changed_since")
@pytest.mark.parametrize(
    ("kind", "responses", "match"),
    [
        ("labels", ["7"], r"shape \[1, 3\], not \[1, 1\]"),
        ("broken", ["7"], "returned nan, which is not a finite score"),
        ("causal", ["7"], "has no weights for score.weight"),
        ("plain", ["x" * 200], r"longer than the reward model's 128"),
    ],
)
def test_what_is_no_score_fails_the_rollout_with_the_reason(
    kind: str, responses: list[str], match: str, tmp_path: Path
) -> None:
    if kind == "causal":
        folder = make_tiny_model(tmp_path, seed=1, hidden_size=32, heads=2)
    else:
        folder = saved(tmp_path, labels=3 if kind == "labels" else 1, broken=kind == "broken")
    with pytest.raises(RolloutError, match=match) as caught:
        asyncio.run(scores(folder, responses))
    assert caught.value.where == "taskset 't' row 6"


@pytest.mark.slow
@pytest.mark.usefixtures("changed_since")
def test_a_model_that_would_be_unpickled_is_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    [weights] = folder.glob("*.safetensors")
    torch.save(Qwen2ForSequenceClassification.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(RolloutError, match="safetensors"):
        asyncio.run(scores(folder, ["7"]))


@pytest.mark.slow
def test_an_answer_that_cannot_be_scored_fails_alone(tmp_path: Path) -> None:
    async def together(folder: Path) -> list[object]:
        scorer = open_scorer("reward_model", {"path": str(folder)})
        asked = (scorer.score(each, task()) for each in ["7", "x" * 200, "8", "y" * 300, "9"])
        return [*await asyncio.gather(*asked, return_exceptions=True)]

    failed = [isinstance(each, RolloutError) for each in asyncio.run(together(saved(tmp_path)))]
    assert failed == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("arguments", "field", "match"),
    [
        ({"path": "/nowhere"}, "path", "no such folder: '/nowhere'"),
        ({"path": "./model"}, "path", "'model' is not an absolute path"),
        ({"device": "tpu"}, "device", "is 'tpu'"),
        ({"device": "cuda:x"}, "device", "is 'cuda:x'"),
        ({"batch_size": 0}, "batch_size", "is 0: expected `int` >= 1"),
        ({"batch": 4}, "batch", "takes no argument 'batch'"),
        ({}, "path", "no reward model in"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    arguments: dict[str, object], field: str, match: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=match) as refused:
        REWARDS.open("reward_model", {"path": str(tmp_path), **arguments})
    assert refused.value.field == field
    assert refused.value.fix


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("labels", "gives 3 outputs, not one score"),
        ("causal", "holds a Qwen2ForCausalLM, which has no trained score"),
        ("vision", "no sequence classification model of the type 'vit'"),
        ("pickled", "no weights in safetensors files"),
        ("json", "config.json cannot be read"),
    ],
)
def test_a_folder_without_a_score_is_refused_before_it_is_loaded(tmp_path: Path, kind: str, match: str) -> None:
    if kind == "causal":
        folder = make_tiny_model(tmp_path, seed=1, hidden_size=32, heads=2)
    else:
        folder = saved(tmp_path, labels=3 if kind == "labels" else 1)
    if kind == "vision":
        (folder / "config.json").write_text('{"model_type": "vit"}')
    if kind == "json":
        (folder / "config.json").write_text("{")
    if kind == "pickled":
        [weights] = folder.glob("*.safetensors")
        weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(DataError, match=match):
        REWARDS.check_arguments("reward_model", {"path": str(folder)})
