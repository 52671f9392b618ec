"""Stop texts: found when the last token completes one, however its tokens are cut."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rftd.workers.engines.torch.rollout.responses import StopTexts
from rftd.workers.models.tiny_model import make_tokenizer


def test_a_text_over_several_tokens() -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("one\n\nQ: two\n\nQ:", add_special_tokens=False)
    stops = StopTexts(tokenizer)
    ends = [i for i in range(1, len(ids) + 1) if stops.ends(ids[:i], ("\n\nQ:", "zz"))]
    assert ends == [7, 14 + 1]
    assert [i for i in range(1, len(ids) + 1) if stops.ends(ids[:i], ("\n",))] == [4, 5, 12, 13]


def test_a_special_token_is_a_text_too() -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("12<|user|>", add_special_tokens=False)
    assert len(ids) == 3
    assert StopTexts(tokenizer).ends(ids, ("<|user|>",))


def test_a_character_over_several_tokens_and_a_long_token() -> None:
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary = {**alphabet, "ab": len(alphabet), "abc": len(alphabet) + 1}
    bare = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("ab", "c")]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare)
    stops = StopTexts(tokenizer)
    euro = tokenizer.encode("x€")
    assert len(euro) == 4
    assert [stops.ends(euro[:i], ("€",)) for i in range(1, 5)] == [False, False, False, True]
    assert stops.ends(tokenizer.encode("xabc"), ("ab",))  # the token goes past it
    assert stops.ends(tokenizer.encode("xabc"), ("xa",))
