"""The text of `workers/rollout/engines/vllm/architectures.py`, from the vLLM and the transformers that are installed.

As a program it writes the file:

build/engines-cpu/bin/python -P tests/synthetic/models/vllm_architectures.py
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[3] / "workers" / "rollout" / "engines" / "vllm" / "architectures.py"
_HEAD: Final = '''"""The models that vLLM 0.31 runs, by the architectures that config.json names; known without vLLM.

Written by tests/synthetic/models/vllm_architectures.py from the installed vLLM; tests/engines compares.
"""

from __future__ import annotations

from typing import Final
'''


def written() -> str:
    """The text of the file."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm.model_executor.models import registry
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    generating: set[str] = {
        *registry._TEXT_GENERATION_MODELS,
        *registry._MULTIMODAL_MODELS,
        *registry._TRANSFORMERS_SUPPORTED_MODELS,
    }
    assert generating <= set(registry.ModelRegistry.get_supported_archs())
    kinds: dict[str, Any] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    names = {each for value in kinds.values() for each in ([value] if isinstance(value, str) else value)}
    left = names - set(registry.ModelRegistry.get_supported_archs())
    sized = [kind for kind in kinds if isinstance(getattr(CONFIG_MAPPING[kind], "head_dim", None), int)]
    parts = [
        _set("KNOWN", generating, "Architectures that vLLM generates text with."),
        _set(
            "NOT_CARRIED",
            (name for name in left if not _carried(name)),
            "Architectures of transformers that vLLM does not have, and that its transformers backend cannot run.",
        ),
        _set("SIZED_HEADS", sized, "Model types whose heads have a size of their own where config.json names none."),
        f"CPU_HEADS: Final = ({', '.join(map(str, CPUAttentionBackend.get_supported_head_sizes()))})",
        '"""Sizes of heads that vLLM\'s attention on a CPU has."""',
    ]
    return "\n".join([_HEAD, *parts]) + "\n"


def _carried(name: str) -> bool:
    """True if vLLM's transformers backend takes the class, as `_ModelRegistry._try_resolve_transformers` decides."""
    import transformers

    kind: Any = getattr(transformers, name, None)
    return kind is not None and bool(kind.is_backend_compatible() or kind._can_set_attn_implementation())


def _set(name: str, words: Iterable[str], doc: str) -> str:
    lines = textwrap.fill(" ".join(sorted(words)), 118, break_long_words=False, break_on_hyphens=False)
    return f'_{name} = """\n{lines}\n"""\n{name}: Final = frozenset(_{name}.split())\n"""{doc}"""'


if __name__ == "__main__":
    FILE.write_text(written())
