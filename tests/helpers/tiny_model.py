"""A Hugging Face model of a few thousand weights and its tokenizer, in a folder: what the pages' examples load."""

from __future__ import annotations

from pathlib import Path


def tiny_model(folder: Path) -> None:
    """Lines are its tokens; those that it does not know are all one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    sizes = {"vocab_size": 300, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 1}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)).save_pretrained(folder)
    words = Tokenizer(WordLevel({"?": 0, "<end>": 1, "Once upon a time": 2}, unk_token="?"))
    words.pre_tokenizer = Split("\n", "removed")
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(folder)
