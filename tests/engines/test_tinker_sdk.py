"""The real `tinker` package against a service over HTTP on the loopback, which speaks what our engines use of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from synthetic.models import tinker_messages as wire
from synthetic.models.tinker_over_http import Server, served
from synthetic.models.tinker_rehearsal import KEY

from rftd.ops.errors import ConfigError, DataError, RolloutError, WorkError
from rftd.storage.files.service_state import ServiceState
from rftd.streams.spec.spec import ModelSpec
from rftd.workers.engines.contract.trainer import TrainerBench, make_batch, trained
from rftd.workers.engines.tinker.access import Access
from rftd.workers.engines.tinker.rollout.engine import TinkerRolloutEngine
from rftd.workers.engines.tinker.sdk import connect
from rftd.workers.engines.tinker.trainer.engine import TinkerTrainerEngine
from rftd.workers.generation.engine import GenerationRequest, Sampling
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.service import SERVICE, NamedSnapshot


@pytest.fixture
def server() -> Iterator[Server]:
    with served() as made:
        yield made


@pytest.fixture
def bench(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainerBench]:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    arguments = {"base_model": "org/tiny", "base_url": server.url}
    made = TrainerBench("tinker", tmp_path, arguments=arguments, kl_coef=0.0)
    yield made
    made.close()


def _without_logprobs(body: bytes) -> bytes:
    found = wire.read("ForwardBackwardOutput", body)
    for record in found.loss_fn_outputs:
        del record.fields["logprobs"]
    whole: bytes = found.SerializeToString()
    return whole


def test_it_trains_saves_and_goes_on(bench: TrainerBench, server: Server) -> None:
    stage = bench.stage()
    trained(bench.opened(stage), stage, range(1, 5))
    first = bench.opened(stage)
    trained(first, stage, range(1, 3))
    folder = bench.new_folder() / "global_step_2"
    first.save(folder, hf=False)
    second = bench.opened(stage)
    second.load(folder, stage)
    assert second.checksum() == first.checksum()
    trained(second, stage, range(3, 5))
    runs = {id(run): run for run in server.service.runs.values()}
    whole, resumed = (run for run in runs.values() if len(run.made_of) == 4)
    np.testing.assert_array_equal(whole.table, resumed.table)
    assert not any("telemetry" in each for each in server.asked)
    second.load(folder, None)
    second.begin_stage(bench.stage("sft"))
    assert second.train(make_batch(3)).metrics["actor/sft_loss"] > 0
    assert isinstance(second, TinkerTrainerEngine)
    second.forget(ServiceState.read(folder))
    with pytest.raises(DataError, match="has forgotten tinker://"):
        bench.opened(stage).load(folder, stage)


@pytest.mark.parametrize("late_as", [408, 200])
def test_a_result_that_is_not_there_yet_is_asked_for_again(bench: TrainerBench, server: Server, late_as: int) -> None:
    """By a status, as open servers say it, or in words, as the service does."""
    stage = bench.stage()
    engine = bench.opened(stage)
    server.late_as = late_as
    for step in (1, 2):
        server.late = 3
        trained(engine, stage, range(step, step + 1))
        assert server.late == 0
    (run,) = {id(run): run for run in server.service.runs.values()}.values()
    assert len(run.made_of) == len(set(run.made_of)) == 2


@pytest.mark.anyio
async def test_it_draws_with_named_weights(bench: TrainerBench, server: Server) -> None:
    stage = bench.stage()
    trainer = bench.opened(stage)
    await asyncio.to_thread(trained, trainer, stage, range(1, 3))
    snapshot = await asyncio.to_thread(trainer.snapshot)
    assert isinstance(snapshot, NamedSnapshot)
    path = await asyncio.to_thread(snapshot.name)
    model = ModelSpec(path="/nowhere", max_model_len=32, max_prompt_tokens=16, max_response_tokens=16)
    engine = TinkerRolloutEngine(connect(Access.of(server.url, {"TINKER_API_KEY": KEY})), model)
    ref = WeightsRef(version=2, generation=0, path=path, manifest="m", checksum="name:2", method=SERVICE)
    await engine.load_weights(ref)
    request = GenerationRequest(id=UUID(int=1), prompt=(5, 6), sampling=Sampling(max_tokens=4, seed=3))
    found = await engine.generate(request)
    assert 1 <= len(found.tokens) <= 4
    assert len(found.logprobs) == len(found.tokens)
    # Open servers look for the weights only when a response is asked for.
    server.service.saved.clear()
    with pytest.raises(RolloutError, match=f"has forgotten {path}"):
        await engine.generate(request)
    await engine.close()


def test_a_name_is_held_until_the_service_says_otherwise(bench: TrainerBench, server: Server) -> None:
    """The service is asked for the run's list, which has states and weights; one that fails has the name still."""
    stage = bench.stage()
    trainer = bench.opened(stage)
    trained(trainer, stage, range(1, 3))
    snapshot = trainer.snapshot()
    assert isinstance(trainer, TinkerTrainerEngine)
    assert isinstance(snapshot, NamedSnapshot)
    path = snapshot.name()
    folder = bench.new_folder() / "global_step_2"
    trainer.save(folder, hf=False)
    state = ServiceState.read(folder).path
    assert [trainer.holds_name(each) for each in (path, state, f"{path}0")] == [True, True, False]
    assert not trainer.holds_name("tinker://nothing/sampler_weights/v1")
    trainer.forget_name(path)
    assert [trainer.holds_name(each) for each in (path, state)] == [False, True]
    server.knows_runs = True
    assert not trainer.holds_name("tinker://nothing/sampler_weights/v1")
    server.service.keys = set()
    assert trainer.holds_name(path), "who is refused was told nothing of the name"


@pytest.mark.parametrize(
    ("place", "bug", "said", "field"),
    [
        ("_forward_backward", _without_logprobs, "answer of an unexpected shape", "loss_fn_outputs[0].logprobs"),
        ("_forward_backward", lambda _: {"rows": []}, "unreadable answer", None),
        ("_optim_step", lambda _: {"metrics": "none"}, "unreadable answer", None),
        ("_save_weights", lambda found: found | {"path": "tinker://other/weights/x"}, "of an unexpected shape", "path"),
        ("_save_weights", lambda _: {"type": "save_weights"}, "unreadable answer", None),
    ],
)
def test_a_service_whose_answers_change_their_shape_is_refused_with_the_field(
    bench: TrainerBench,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    bug: Callable[[Any], Any],
    said: str,
    field: str | None,
) -> None:
    stage = bench.stage()
    engine = bench.opened(stage)
    trained(engine, stage, range(1, 2))
    right = getattr(Server, place)
    monkeypatch.setattr(Server, place, lambda self, asked: bug(right(self, asked)))
    with pytest.raises(WorkError, match=said) as error:
        engine.train(make_batch(2))
        engine.save(bench.new_folder() / "global_step_2", hf=False)
    assert error.value.field == field
    assert KEY not in str(error.value)


def test_a_service_that_begins_nothing_now_has_forgotten_nothing(bench: TrainerBench, server: Server) -> None:
    """A full service answers as one that does not know a name: its lists tell which it is."""
    stage = bench.stage()
    trainer = bench.opened(stage)
    trained(trainer, stage, range(1, 3))
    folder = bench.new_folder() / "global_step_2"
    trainer.save(folder, hf=False)
    server.full = True
    with pytest.raises(WorkError, match=r"did not load tinker://.*LoRA adapters \(8\) reached"):
        bench.opened(stage).load(folder, stage)
    with pytest.raises(WorkError, match=r"did not begin with org/tiny.*LoRA adapters \(8\) reached"):
        bench.opened(stage).begin_stage(stage)
    server.full = False
    bench.opened(stage).load(folder, stage)


def test_a_text_that_is_no_key_is_named_by_its_variable(
    bench: TrainerBench, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    monkeypatch.setenv("TRINITY_API_KEY", "sk-of-another-service")
    stage = bench.stage()
    with pytest.raises(ConfigError, match=r"the text of TRINITY_API_KEY is no key .* 'tml-'") as error:
        bench.opened(stage).begin_stage(stage)
    assert "sk-of" not in str(error.value)
    monkeypatch.setenv("TRINITY_API_KEY", KEY)
    bench.opened(stage).begin_stage(stage)


def test_a_wrong_key_and_an_unknown_model_are_named(bench: TrainerBench, server: Server, tmp_path: Path) -> None:
    stage = bench.stage()
    arguments = {"base_model": "org/other", "base_url": server.url}
    other = TrainerBench("tinker", tmp_path / "other", arguments=arguments, model=bench.model, kl_coef=0.0)
    with pytest.raises(ConfigError, match="does not know the model 'org/other'"):
        other.opened(other.stage()).begin_stage(stage)
    server.service.keys = {"another"}
    with pytest.raises(ConfigError, match="refuses the key of TINKER_API_KEY") as error:
        bench.opened(stage).begin_stage(stage)
    assert KEY not in str(error.value)
