"""`AuxiliaryEngine`: an auxiliary model's separate engine in the explorer, with the weights of the model's folder."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError, RftdError, RolloutError
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, StageSpec
from rftd.workers.datasets.stage_tokenizer import stage_tokenizer
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.auxiliary.auxiliary_stage import auxiliary_stage
from rftd.workers.generation.engine import RolloutEngine, check_lives
from rftd.workers.generation.engine_registry import open_engine
from rftd.workers.weights import checkpoint, safetensors
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.checksum import checksum_of, tensor_sums
from rftd.workers.weights.manifest import Manifest, manifest_id
from rftd.workers.weights.tensor_bytes import TensorBytes, Weights, each_once

_INDEX: Final = "model.safetensors.index.json"
"""File listing the parts of a model's weights."""


class _PartsIndex(msgspec.Struct, frozen=True):
    """The index of a model in several files."""

    weight_map: dict[str, str]
    """File of each tensor."""


class OpenedModel(NamedTuple):
    """An engine with its weights loaded, and the tokenizer and model for its prompts."""

    engine: RolloutEngine
    """Engine with the weights of the auxiliary model loaded."""
    tokenizer: Tokenizer
    """Tokenizer of the model."""
    model: ModelSpec
    """Folder and lengths of the model."""


class AuxiliaryEngines:
    """The engines that one explorer runs for an auxiliary model."""

    def __init__(
        self,
        spec: AuxiliarySpec,
        experiment: ExperimentSpec,
        stage: StageSpec,
        clock: Clock,
        *,
        gpus: range = range(0),
    ) -> None:
        """Divides `gpus` (indices among the process's) among the engines; `stage` is any stage with the model."""
        share = len(gpus) // spec.engines
        self.engines = tuple(
            AuxiliaryEngine(
                spec, experiment, stage, clock, gpus=gpus[number * share : (number + 1) * share], number=number
            )
            for number in range(spec.engines)
        )
        """The engines, each on its share of the GPUs."""
        self._rollouts = dict.fromkeys(self.engines, 0)
        """Number of rollouts begun on each engine."""

    def least_busy(self) -> AuxiliaryEngine:
        """Returns the engine with the fewest unanswered questions, and of equal ones that with the fewest rollouts."""
        engine = min(self.engines, key=lambda engine: (engine.questions, self._rollouts[engine]))
        self._rollouts[engine] += 1
        return engine

    def check_lives(self) -> None:
        """Raises WorkError if an engine has failed for good in this process; engines not opened yet have not."""
        for engine in self.engines:
            engine.check_lives()

    async def close(self) -> None:
        """Closes the opened engines. Idempotent."""
        for engine in self.engines:
            await engine.close()


class AuxiliaryEngine:
    """A separate engine, opened at its first request, and again at the next one if opening failed.

    An engine that fails later is not replaced: the explorer ends, as with the engine of the rollouts.
    """

    def __init__(
        self,
        spec: AuxiliarySpec,
        experiment: ExperimentSpec,
        stage: StageSpec,
        clock: Clock,
        *,
        gpus: range = range(0),
        number: int = 0,
    ) -> None:
        """`stage` is any with the model; `gpus` are indices among the process's; `number` is the engine's index."""
        self._spec = spec
        self._gpus = gpus
        self._clock = clock
        self._folder = Path(experiment.job_dir) / "auxiliary" / spec.name
        """Folder for the engine's files."""
        self._stage = auxiliary_stage(spec, stage)
        """Stage with the auxiliary model in place of the trained one."""
        # A separate folder: two engines of one kind would otherwise write into one.
        folder = self._folder / str(number) if number else self._folder
        self._experiment = msgspec.structs.replace(experiment, job_dir=str(folder), stages=(self._stage,))
        """Experiment with the auxiliary stage alone, and with a separate folder for each engine's files."""
        self._opening: asyncio.Task[OpenedModel | Exception] | None = None
        """Task opening the engine; None before the first request, after a failed opening, and after `close`."""
        self.questions = 0
        """Number of unanswered questions."""

    async def opened(self, tasks: asyncio.TaskGroup) -> OpenedModel:
        """Returns the engine, opened by a task of the group: a cancelled caller does not cancel the opening for other
        callers.

        Raises RolloutError if opening fails; the next call tries again.
        """
        if self._opening is None:
            self._opening = tasks.create_task(self._open_engine())
        opening = self._opening
        outcome = await asyncio.shield(opening)
        if isinstance(outcome, OpenedModel):
            return outcome
        if self._opening is opening:  # another waiting caller may have begun a new attempt
            self._opening = None
        problem = outcome.what if isinstance(outcome, RftdError) else f"{type(outcome).__name__}: {outcome}"
        fix = outcome.fix if isinstance(outcome, RftdError) else None
        raise RolloutError(f"the auxiliary model {self._spec.name!r} cannot be opened: {problem}", fix=fix) from outcome

    def check_lives(self) -> None:
        """Raises WorkError if the engine has failed for good in this process; one not opened yet has not."""
        opened = self._opened_model()
        if opened is not None:
            check_lives(opened.engine, f"the engine of the auxiliary model {self._spec.name!r}")

    async def close(self) -> None:
        """Closes the engine, if it was opened. Idempotent."""
        opened = self._opened_model()
        self._opening = None
        if opened is not None:
            await opened.engine.close()

    def _opened_model(self) -> OpenedModel | None:
        """Returns the opened engine; None while there is none."""
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled():
            return None
        outcome = opening.result()
        return outcome if isinstance(outcome, OpenedModel) else None

    async def _open_engine(self) -> OpenedModel | Exception:
        """Opens the engine with the model's weights; returns the error if the opening fails."""
        try:
            tokenizer = await asyncio.to_thread(stage_tokenizer, self._stage)
            weights = await asyncio.to_thread(self._publish_weights)
            engine = await open_engine(
                self._experiment,
                self._stage,
                slots=self._spec.concurrency,
                clock=self._clock,
                gpus=self._gpus,
            )
        except Exception as error:
            return error
        try:
            await engine.load_weights(weights)
        except BaseException as error:
            await engine.close()
            if isinstance(error, Exception):
                return error
            raise
        return OpenedModel(engine, tokenizer, self._stage.model)

    def _publish_weights(self) -> WeightsRef:
        """Writes the model's weights for the engine, and returns their reference. Blocks."""
        folder = self._folder / "weights"
        # A fake engine is opened with weights like every engine, but ignores them.
        return published({} if self._spec.engine == "fake" else Path(self._spec.path), folder)


def published(model: Path | Weights, folder: Path) -> WeightsRef:
    """Writes the weights of a model folder, or bare weights, in the form of the channel `checkpoint`, and returns the
    reference.

    The files lie below `folder`; the weights of a model in one file are linked, not copied. Idempotent. Blocks. Raises
    DataError if the model has no tensors in the safetensors format.
    """
    weights = _read_tensors(model) if isinstance(model, Path) else model
    sums = tensor_sums(weights)
    manifest = Manifest(version=0, generation=0, checksum=checksum_of(sums), tensors=sums)
    encoded = msgspec.json.encode(manifest)
    target = folder / manifest_id(encoded)
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        # A name for each call: several engines of a process write at the same time.
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=folder))
        whole = model / checkpoint.TENSORS if isinstance(model, Path) else None
        if whole is not None and whole.is_file():
            (partial / checkpoint.TENSORS).symlink_to(whole.resolve())
        else:
            safetensors.write(each_once(weights), partial / checkpoint.TENSORS)
        (partial / checkpoint.MANIFEST).write_bytes(encoded)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            # Another writer was first, with equal bytes: the folder's name is their digest.
            shutil.rmtree(partial, ignore_errors=True)
    return WeightsRef(
        version=0, generation=0, path=str(target), manifest=target.name, checksum=manifest.checksum, method="checkpoint"
    )


def _read_tensors(model: Path) -> Weights:
    """Reads the tensors of a model's one file, or of all files named by its index."""
    if (model / checkpoint.TENSORS).is_file():
        return safetensors.read(model / checkpoint.TENSORS)
    try:
        index = json_decoder(_PartsIndex).decode((model / _INDEX).read_bytes())
    except (OSError, *UNREADABLE) as error:
        raise DataError(
            f"no weights in {str(model)!r}: {error}",
            field="explorer.auxiliary_models",
            fix="give a folder with model.safetensors, or with its parts and their index",
        ) from error
    tensors: dict[str, TensorBytes] = {}
    for name in sorted({Path(file_name).name for file_name in index.weight_map.values()}):
        tensors.update(safetensors.read(model / name))
    return tensors
