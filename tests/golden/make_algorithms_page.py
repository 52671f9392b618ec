"""Writes docs/algorithms.md from the registries and what the parts say of themselves.

`.venv/bin/python -P tests/golden/make_algorithms_page.py`, after adding or changing a part; a test says when the page
is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any, Final

from rftd.ops.plugins import Plugins
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition
from rftd.workers.learning.algorithms.registry import ALGORITHMS, lookup
from rftd.workers.learning.corrections.registry import CORRECTIONS
from rftd.workers.learning.losses import aggregation
from rftd.workers.learning.losses.entropy_losses import ENTROPY_LOSSES
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.losses.registry import POLICY_LOSSES

PAGE: Final = Path(__file__).parents[2] / "docs" / "algorithms.md"

HEAD: Final = """\
# Algorithms

Written by `tests/golden/make_algorithms_page.py` from the registries; do not edit.

`algorithm.algorithm_type` selects a type: a policy loss, an advantage function, a KL loss, an entropy loss and an
aggregation, with their defaults. Each part can also be selected separately (`policy_loss_fn: gspo`), and its arguments
(`policy_loss_fn_args`) are merged over the defaults. `repeat_times` and `loss_agg_mode` are the type's unless set.

```yaml
algorithm:
  algorithm_type: grpo
  policy_loss_fn: dppo
  policy_loss_fn_args: {dppo_mask_high: 0.3}
  loss_agg_mode: seq-mean-token-sum-norm
  loss_scale_factor: 512
```

The loss of a batch is policy loss - entropy_coef · entropy + kl_coef · KL, each aggregated over the trained tokens of
the whole batch: neither micro-batches nor packing change it. In the formulas, r is e^(logprob - old logprob), where the
old one is that of the weights that sampled the token, A the advantage, p the probability; sg stops the gradient.

Values and gradients are tested against verl and against loops written from the formulas. Every registered part also
passes one contract, which you can run for your own parts: `tests/contract/test_losses.py`.
"""

NOTEBOOK: Final = """
## In a notebook

Every part is an object of plain tensors; no daemon, no log, no model.

```python
import torch

from rftd.workers.learning.losses import from_tensors

mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])  # two responses, padded; 1 at trained tokens
old_logprobs = torch.tensor([[-1.2, -0.4, -2.0, 0.0], [-0.7, -1.1, 0.0, 0.0]])
logprobs = (old_logprobs + 0.1).requires_grad_()

loss, reported = from_tensors.policy_loss(
    "ppo", logprobs=logprobs, old_logprobs=old_logprobs, advantages=torch.tensor([1.0, -1.0]), mask=mask, clip_range=0.2
)
loss.backward()
assert logprobs.grad is not None and not logprobs.grad[mask == 0].any()
assert set(reported) >= {"pg_clipfrac", "ppo_kl"}

distance = from_tensors.kl("k3", logprobs=logprobs, ref_logprobs=old_logprobs, mask=mask)
assert abs(distance.item() - 0.004837) < 1e-5  # e^-0.1 - 1 + 0.1
```

Advantages are functions of whole groups, of numpy arrays:

```python
import numpy as np

from rftd.workers.learning.algorithms.advantages import ADVANTAGES, ClosedGroup

group = ClosedGroup(rewards=np.array([1.0, 0.0, 0.0, 1.0], np.float32))
(advantages,) = ADVANTAGES.open("rloo").advantages([group])
assert np.allclose(advantages, [2 / 3, -2 / 3, -2 / 3, 2 / 3])
```
"""

KL: Final = """ In the formulas d is logprob - reference logprob. k2 for a loss, for its gradient is that of the KL; k1
or k3 for a figure; low_var_kl where the policy may drift far; corrected_k3 where tokens are of older weights."""

CORRECTED: Final = """ Multipliers and masks over any policy loss, for tokens that older weights drew; w is the ratio of
the weights before the step to those that drew the token."""


def text() -> str:
    """The page as it should be."""
    types = [lookup(name) for name in ALGORITHMS.names() if ALGORITHMS.builtin(name)]
    return "".join(
        [
            HEAD,
            NOTEBOOK,
            "\n## Types\n\n| type | repeat_times | advantage | policy loss | KL | entropy | aggregation | needs |\n",
            "|---|---|---|---|---|---|---|---|\n",
            *(_row(each) for each in types),
            *(_type(each) for each in types),
            _parts("Policy losses", "policy_loss_fn", POLICY_LOSSES),
            _parts("Advantage functions", "advantage_fn", ADVANTAGES),
            _parts("KL losses", "kl_loss_fn", KL_LOSSES, KL),
            _parts("Entropy losses", "entropy_loss_fn", ENTROPY_LOSSES),
            _parts("Corrections", "rollout_correction", CORRECTIONS, CORRECTED),
            _aggregations(),
        ]
    )


def _row(each: AlgorithmDefinition) -> str:
    columns = (
        f"[`{each.name}`](#{each.name})",
        each.repeat_times if each.needs.rollouts else "",
        *(f"`{part}`" for part in (each.advantage, each.policy_loss, each.kl_loss, each.entropy_loss)),
        each.loss_agg_mode,
        ", ".join(_needs(each)),
    )
    return f"| {' | '.join(str(column) for column in columns)} |\n"


def _needs(each: AlgorithmDefinition) -> list[str]:
    words = {
        "groups": "groups",
        "old_logprobs": "old log-probabilities",
        "reference": "reference",
        "critic": "critic",
        "teacher": "teacher",
        "expert_data": "an expert's rows",
    }
    needed = [word for field, word in words.items() if getattr(each.needs, field)]
    return needed if each.needs.rollouts else ["rows of a dataset", *needed]


def _type(each: AlgorithmDefinition) -> str:
    defaults = [
        f"{part}_args {_shown(arguments)}"
        for part in ("advantage", "policy_loss", "kl_loss", "entropy_loss", "sample_strategy")
        if (arguments := getattr(each, f"{part}_args"))
    ]
    lines = [f"\n### {each.name}\n\n{each.summary}\n"]
    if each.when:
        lines.append(f"\nWhen: {each.when}\n")
    lines.append(f"\nSource: {each.source}.\n")
    if defaults:
        lines.append(f"\nDefaults: {'; '.join(defaults)}.\n")
    return "".join(lines)


def _shown(arguments: dict[str, Any]) -> str:
    return "`{" + ", ".join(f"{name}: {_value(value)}" for name, value in arguments.items()) + "}`"


def _value(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is inspect.Parameter.empty or value is dataclasses.MISSING:
        return "required"
    return json.dumps(value).replace("Infinity", ".inf")


def _parts(title: str, field: str, plugins: Plugins[Any], said: str = "") -> str:
    lines = [f"\n## {title}\n\n`algorithm.{field}`.{said}\n"]
    for name in plugins.names():
        if not plugins.builtin(name):
            continue
        factory = plugins.load(name)
        lines.append(f"\n### {field} {name}\n\n")
        lines.append(_said(factory))
        if arguments := _arguments(factory):
            lines.append(f"\nArguments: {_shown(arguments)}.\n")
    return "".join(lines)


def _said(factory: Any) -> str:
    """Formula, explanation and source, a paragraph each."""
    said = (inspect.getdoc(factory) or "").replace("\nSource:", "\n\nSource:")
    return "\n\n".join(" ".join(block.split()) for block in said.split("\n\n")) + "\n"


def _arguments(factory: Any) -> dict[str, object]:
    """Names and defaults of what a part takes; what is taken without effect is of the type object."""
    if dataclasses.is_dataclass(factory):
        return {each.name: each.default for each in dataclasses.fields(factory) if each.init and each.type != "object"}
    parameters = inspect.signature(factory).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _aggregations() -> str:
    rows = [f"| `{name}` | {_said(function).strip()} |\n" for name, function in aggregation.AGGREGATIONS.items()]
    said = "`algorithm.loss_agg_mode`. A response without a trained token is not among those that are counted."
    return f"\n## Aggregations\n\n{said}\n\n| mode | what it is |\n|---|---|\n" + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(text())
