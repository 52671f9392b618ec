"""The contract of trainer engines as checks for any test runner, for built-in and third-party engines.

A check is a function of the `TrainerBench`, which opens engines by their registered name. `CHECKS` are promises of
every engine, `MODEL_CHECKS` promises of an engine training the model of its folder. With pytest's
`register_assert_rewrite` of this module a failed check shows its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from rftd.ops.errors import DataError
from rftd.storage.files.checkpoints import commit_folder, verify
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.learning.engine import TrainBatch, TrainerEngine, TrainSample, checksum_like
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights import checkpoint, safetensors
from rftd.workers.weights.checksum import form_of
from rftd.workers.weights.tensor_bytes import Weights

_XXH3: Final = "0" * 32
"""An example digest in the channels' form."""


class TrainerBench:
    """Opens trainer engines of one registered name, all with the same model, for checks."""

    def __init__(
        self,
        engine: str,
        folder: Path,
        *,
        arguments: Mapping[str, Any] | None = None,
        model: Path | None = None,
        kl_coef: float = 0.01,
    ) -> None:
        """`folder` is empty; `model` is the folder of the base model, by default the demo's tiny Qwen2; `kl_coef` is
        the KL coefficient of all stages, 0 for an engine without a reference model.
        """
        self.folder = folder
        self.kl_coef = kl_coef
        self.trainer = TrainerSpec(engine=engine, engine_args=dict(arguments or {}))
        self.model = model or make_tiny_model(folder / "model", seed=5, hidden_size=32, heads=2)
        self._open = ExitStack()
        self._folders = 0

    def stage(self, name: str = "rft", *, kl_coef: float | None = None) -> StageSpec:
        """Returns the specification of a stage: supervised training if named `sft`, else GRPO."""
        sft = name == "sft"
        kl_coef = self.kl_coef if kl_coef is None else kl_coef
        return StageSpec(
            name=name,
            kind="train" if sft else "both",
            total_steps=40,
            batch_size=4,
            train_batch_size=16,
            algorithm=AlgorithmSpec(
                kind="sft" if sft else "grpo",
                advantage="none" if sft else "grpo",
                policy_loss="sft" if sft else "ppo",
                kl_loss="none" if sft or not kl_coef else "k2",
                kl_loss_args={} if sft or not kl_coef else {"kl_coef": kl_coef},
                optimizer=Optimizer(lr=1e-2, lr_warmup_steps=2, lr_scheduler_type="cosine", decay_all=True),
            ),
            model=ModelSpec(path="", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
            trainer=self.trainer,
        )

    def opened(self, stage: StageSpec, model: Path | None = None) -> TrainerEngine:
        """Opens an engine on the base model (or `model`) for an experiment of one stage; `TrainerBench.close` closes
        the engine.
        """
        engine = make_engine(stage.trainer)
        self._open.callback(engine.close)
        experiment = ExperimentSpec(project="contract", name="n", job_dir="/nowhere", stages=(stage,), config={})
        engine.open(experiment, str(model or self.model))
        return engine

    def new_folder(self) -> Path:
        """Returns the path of a folder not yet existing."""
        self._folders += 1
        return self.folder / f"{self._folders}"

    def close(self) -> None:
        """Closes all engines opened since the last call."""
        self._open.close()


Check: TypeAlias = Callable[[TrainerBench], None]
"""Function checking one promise of the bench's engines. Raises AssertionError."""


def make_batch(step: int, *, repeat: int = 4) -> TrainBatch:
    """Returns a batch of four prompts with four rollouts each: half of the responses begin with token 50 and have
    advantage 1, half with token 60 and advantage -1.
    """
    rng = np.random.default_rng(step % repeat)
    samples = []
    for group in range(4):
        for member in range(4):
            good = member % 2 == 0
            response = [50 if good else 60, int(rng.integers(7, 120)), 2]
            samples.append(
                TrainSample(
                    tokens=np.array([1, 10 + group, 20, *response], np.uint32),
                    prompt_tokens=3,
                    loss_mask=np.array([1, 1, 1], np.uint8),
                    logprobs=np.full(3, -4.8, np.float32),
                    advantages=np.full(3, 1.0 if good else -1.0, np.float32),
                    reward=float(good),
                    group=group,
                )
            )
    return TrainBatch(step=step, stage_step=step, samples=samples)


def trained(engine: TrainerEngine, stage: StageSpec, steps: range) -> list[str]:
    """Trains the steps, and returns the checksum after each; begins the stage first if the steps start with 1."""
    if steps.start == 1:
        engine.begin_stage(stage)
    checksums = []
    for step in steps:
        engine.train(make_batch(step))
        checksums.append(engine.checksum())
    return checksums


def equal_batches_make_equal_weights(bench: TrainerBench) -> None:
    """Checks that equal batches give equal weights, bit for bit on a deterministic engine, and that each step changes
    them.
    """
    stage = bench.stage()
    first = bench.opened(stage)
    second = bench.opened(stage)
    assert first.checksum() == second.checksum()
    assert first.sha256() == second.sha256()
    history = trained(first, stage, range(1, 5))
    assert len(set(history)) == 4
    assert form_of(first.sha256()) in ("sha256", "tensors", "name")
    if first.deterministic:
        assert trained(second, stage, range(1, 5)) == history
        assert first.sha256() == second.sha256()


def an_engine_says_what_its_bits_depend_on(bench: TrainerBench) -> None:
    """Checks that `environment` returns plain text, equal at each opening, so that it can be recorded and compared."""
    stage = bench.stage()
    environment = bench.opened(stage).environment()
    assert environment
    assert environment == bench.opened(stage).environment()
    assert all(type(text) is str and text for text in environment.values())


def a_continued_run_equals_an_uninterrupted_one(bench: TrainerBench) -> None:
    """Checks that a run continues from a checkpoint in the middle of a stage, with and without the folder for
    transformers.
    """
    stage = bench.stage()
    whole = trained(bench.opened(stage), stage, range(1, 7))
    first = bench.opened(stage)
    trained(first, stage, range(1, 4))
    for hf in (False, True):
        folder = bench.new_folder() / "global_step_3"
        files = commit_folder(folder, lambda temporary, hf=hf: first.save(temporary, hf=hf))  # type: ignore[misc]
        second = bench.opened(stage)
        second.load(folder, stage)
        assert second.checksum() == first.checksum()
        continued = trained(second, stage, range(4, 7))
        if first.deterministic:
            assert continued == whole[3:]
        verify(folder, files)


def another_stage_takes_the_weights_only(bench: TrainerBench) -> None:
    """Checks that a new stage continues the weights with a fresh optimizer, in a running engine as in a reopened
    one.
    """
    stage = bench.stage("sft")
    after = bench.stage("rft")
    first = bench.opened(stage)
    trained(first, stage, range(1, 4))
    folder = bench.new_folder() / "global_step_3"
    first.save(folder, hf=False)
    saved = first.checksum()
    expected = trained(first, after, range(1, 3))
    second = bench.opened(stage)
    second.load(folder, None)
    assert second.checksum() == saved
    continued = trained(second, after, range(1, 3))
    if first.deterministic:
        assert continued == expected


def exports_name_their_checksum(bench: TrainerBench) -> None:
    """Checks that the exported checksum, verified by explorers, equals the engine's own, and that a second export is
    equal.
    """
    stage = bench.stage()
    engine = bench.opened(stage)
    trained(engine, stage, range(1, 2))
    exported = checkpoint.export(engine.snapshot().weights(), bench.new_folder(), version=1, generation=0)
    assert exported.checksum == checksum_like(engine, exported.checksum)
    assert exported.size_bytes > 0
    again = checkpoint.export(engine.snapshot().weights(), bench.new_folder(), version=1, generation=0)
    assert (again.checksum, again.manifest) == (exported.checksum, exported.manifest)


def a_snapshot_stays_what_it_was(bench: TrainerBench) -> None:
    """Checks that a snapshot is unaffected by later training."""
    stage = bench.stage()
    engine = bench.opened(stage)
    trained(engine, stage, range(1, 2))
    before = checksum_like(engine, _XXH3)
    snapshot = engine.snapshot()
    trained(engine, stage, range(2, 4))
    assert checksum_like(engine, _XXH3) != before
    assert checkpoint.export(snapshot.weights(), bench.new_folder(), version=1, generation=0).checksum == before


def a_missing_checkpoint_is_an_error_of_data(bench: TrainerBench) -> None:
    """Checks that loading a missing checkpoint raises DataError and changes no weights."""
    stage = bench.stage()
    engine = bench.opened(stage)
    before = engine.checksum()
    try:
        engine.load(bench.new_folder() / "global_step_9", stage)
    except DataError:
        assert engine.checksum() == before
    else:
        raise AssertionError("a missing checkpoint was loaded")


def closing_twice_changes_nothing(bench: TrainerBench) -> None:
    """Checks that a second `close` has no effect, because an engine may be closed from several places."""
    engine = bench.opened(bench.stage())
    engine.close()
    engine.close()


def sft_lowers_its_loss(bench: TrainerBench) -> None:
    """Checks that 24 steps of supervised training lower the loss to less than half."""
    stage = bench.stage("sft")
    engine = bench.opened(stage)
    engine.begin_stage(stage)
    losses = [engine.train(make_batch(step)).metrics["actor/sft_loss"] for step in range(1, 25)]
    assert np.mean(losses[-4:]) < 0.5 * np.mean(losses[:4])


def the_hugging_face_folder_holds_equal_weights(bench: TrainerBench) -> None:
    """Checks that `huggingface/` has the exported weights, bit for bit, and is a base model that the engine can
    open.
    """
    stage = bench.stage("sft")
    engine = bench.opened(stage)
    trained(engine, stage, range(1, 3))
    folder = bench.new_folder()
    engine.save(folder, hf=True)
    saved = _read(folder / "actor" / "huggingface")
    exported = checkpoint.export(engine.snapshot().weights(), bench.new_folder(), version=2, generation=0)
    for name, tensor in _read(Path(exported.path)).items():
        assert saved[name].data == tensor.data, name
    assert bench.opened(stage, folder / "actor" / "huggingface").checksum() == engine.checksum()


def _read(folder: Path) -> Weights:
    """Reads the weights in a folder's model.safetensors."""
    return safetensors.read(folder / "model.safetensors")


NAMED_CHECKS: Final[tuple[Check, ...]] = (
    equal_batches_make_equal_weights,
    an_engine_says_what_its_bits_depend_on,
    a_continued_run_equals_an_uninterrupted_one,
    another_stage_takes_the_weights_only,
    a_missing_checkpoint_is_an_error_of_data,
    closing_twice_changes_nothing,
)
"""Checks of every engine, including engines with weights at a service."""

CHECKS: Final[tuple[Check, ...]] = (*NAMED_CHECKS, exports_name_their_checksum, a_snapshot_stays_what_it_was)
"""Checks of every engine with weights on this machine."""

MODEL_CHECKS: Final[tuple[Check, ...]] = (*CHECKS, sft_lowers_its_loss, the_hugging_face_folder_holds_equal_weights)
"""Checks of an engine that trains the model of its folder."""
