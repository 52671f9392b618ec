"""The names imported by packages of third parties: `from rftd.workers.api import Message`.

These names stay here when files move; docs/extending.md explains each of them. This module does not import torch.
"""

from rftd.ops.errors import (
    ConfigError,
    ConflictError,
    DataError,
    DeviceMemoryError,
    NonFiniteLossError,
    RolloutError,
    WeightsElsewhereError,
    WorkError,
)
from rftd.streams.events.experience import Span
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.policy import Flight, PolicyView, Retirement, StalenessPolicy
from rftd.workers.control.selectors.selector import ClosedRewards, DrawView, TaskSelector
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.devices.device_memory import EngineMemory, Need
from rftd.workers.devices.host import Device, Host
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer, AuxiliaryModel, ModelAddress
from rftd.workers.generation.call_spans import tool_call
from rftd.workers.generation.engine import (
    EngineStats,
    Generation,
    GenerationRequest,
    GroupEngine,
    RolloutEngine,
    Sampling,
    SchemaEngine,
)
from rftd.workers.generation.engine_definition import EngineOpening, EnginePlan, RolloutEngineDefinition
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction, Masking, OneGroup, Substituting
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition, Needs
from rftd.workers.learning.corrections.correction import Corrected, Correction, Mismatch
from rftd.workers.learning.engine import StepResult, TrainBatch, TrainerEngine, TrainSample, WeightsSnapshot
from rftd.workers.learning.engine_definition import TrainerEngineDefinition, TrainerOpening
from rftd.workers.learning.losses.batch_tokens import BatchTokens
from rftd.workers.learning.losses.policy_loss import LossNeeds, LossTokens, PolicyLoss, TokenLoss
from rftd.workers.learning.token_advantages.token_advantage import TokenAdvantage
from rftd.workers.pipelines.operator import GroupContext, Operator, PipelineExperience
from rftd.workers.pipelines.task_operator import PipelineRow, TaskOperator
from rftd.workers.weights.channel import (
    ChannelPlace,
    Exported,
    WeightChannel,
    WeightsKind,
    WeightsRef,
    check_announced,
    name_of,
)
from rftd.workers.weights.checksum import checksum_of, tensor_sums
from rftd.workers.weights.manifest import Manifest, TensorSum, manifest_id
from rftd.workers.weights.registry import Channels, open_weights
from rftd.workers.weights.tensor_bytes import TensorBytes, Weights
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import Reward, RewardResult, RolloutView
from rftd.workers.workflows.trajectory import Trajectory
from rftd.workers.workflows.workflow import Workflow

__all__ = [
    "AdvantageFunction",
    "AlgorithmDefinition",
    "AuxiliaryAnswer",
    "AuxiliaryModel",
    "BatchTokens",
    "ChannelPlace",
    "Channels",
    "ClosedGroup",
    "ClosedRewards",
    "ConfigError",
    "ConflictError",
    "Corrected",
    "Correction",
    "DataError",
    "Device",
    "DeviceMemoryError",
    "DrawView",
    "EngineMemory",
    "EngineOpening",
    "EnginePlan",
    "EngineStats",
    "ExperimentSpec",
    "Exported",
    "Flight",
    "Generation",
    "GenerationRequest",
    "GroupContext",
    "GroupEngine",
    "Host",
    "LossNeeds",
    "LossTokens",
    "Manifest",
    "Masking",
    "Message",
    "Mismatch",
    "Model",
    "ModelAddress",
    "ModelSpec",
    "Need",
    "Needs",
    "NonFiniteLossError",
    "OneGroup",
    "Operator",
    "Paced",
    "PipelineExperience",
    "PipelineRow",
    "PolicyLoss",
    "PolicyView",
    "Response",
    "Retirement",
    "Reward",
    "RewardResult",
    "RolloutEngine",
    "RolloutEngineDefinition",
    "RolloutError",
    "RolloutResult",
    "RolloutSpec",
    "RolloutView",
    "Sampling",
    "SchemaEngine",
    "Span",
    "StageSpec",
    "StalenessPolicy",
    "StepResult",
    "Substituting",
    "Task",
    "TaskOperator",
    "TaskSelector",
    "TensorBytes",
    "TensorSum",
    "TokenAdvantage",
    "TokenLoss",
    "TrainBatch",
    "TrainSample",
    "TrainerEngine",
    "TrainerEngineDefinition",
    "TrainerOpening",
    "TrainerSpec",
    "Trajectory",
    "WeightChannel",
    "Weights",
    "WeightsElsewhereError",
    "WeightsKind",
    "WeightsRef",
    "WeightsSnapshot",
    "WorkError",
    "Workflow",
    "check_announced",
    "checksum_of",
    "manifest_id",
    "name_of",
    "open_weights",
    "tensor_sums",
    "tool_call",
]
