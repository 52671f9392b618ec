"""The models that the installed vLLM runs, by the architectures that config.json names."""

from __future__ import annotations

from typing import Any


def installed_architectures() -> dict[str, list[Any]]:
    """The lists of `rftd.workers.engines.vllm.tables.VllmTables`, of the installed vLLM and transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm.model_executor.models import registry
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    generating: set[str] = {
        *registry._TEXT_GENERATION_MODELS,
        *registry._MULTIMODAL_MODELS,
        *registry._TRANSFORMERS_SUPPORTED_MODELS,
    }
    supported = set(registry.ModelRegistry.get_supported_archs())
    assert generating <= supported
    kinds: dict[str, Any] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    names = {each for value in kinds.values() for each in ([value] if isinstance(value, str) else value)}
    return {
        "generating": sorted(generating),
        "not_carried": sorted(name for name in names - supported if not _carried(name)),
        "sized_heads": sorted(
            kind for kind in kinds if isinstance(getattr(CONFIG_MAPPING[kind], "head_dim", None), int)
        ),
        "cpu_heads": list(CPUAttentionBackend.get_supported_head_sizes()),
    }


def _carried(name: str) -> bool:
    """True if vLLM's transformers backend takes the class, as `_ModelRegistry._try_resolve_transformers` decides."""
    import transformers

    kind: Any = getattr(transformers, name, None)
    return kind is not None and bool(kind.is_backend_compatible() or kind._can_set_attn_implementation())
