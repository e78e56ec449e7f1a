"""Who shares its input embedding as output layer: what is known of families and classes, where a file does not say.

"Tied" is concluded from a configuration that says so, or from a family that is known to tie where its configuration is silent,
and only for classes that give logits over words: a classifier or a reward model around the same body has another output layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headlong.errors import MalformedFileError
from headlong.layers.conventions import AROUND, half_with_head

_FAMILIES = """
albert aya_vision bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small blip bloom camembert
canary cohere cohere2 cohere2_moe cohere2_vision cohere_compass_text convbert cpmant ctrl data2vec-text deberta deberta-v2
deepseek_vl deepseek_vl_hybrid diffusion_gemma distilbert electra ernie ernie4_5 ernie4_5_moe ernie4_5_vl_moe esm falcon
falcon_mamba flaubert flava florence2 fnet fun_asr_nano funnel gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4
gemma4_text gemma4_unified gemma4_unified_assistant gemma4_unified_text glmasr got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo
gpt_neox_japanese granite_docling granite_speech granite_speech_plus granite_swa gte hunyuan_vl hyperclovax_vision_v2 ibert
internvl janus jetmoe jina_embeddings_v3 kimi_k25 kosmos-2 kosmos-2.5 layoutlm led lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl
lighton_ocr longformer longt5 luke lxmert m2m_100 mamba marian mbart megatron-bert minicpm3 minicpm_ocr mistral3 mobilebert
modernbert modernbert-decoder moonshine moss_transcribe_diarize mpnet mpt mra mt5 mvp neomme nllb-moe nomic_bert
nystromformer openai-gpt opt ovis2 paddleocr_vl paligemma pegasus pegasus_x plbart pop2piano pp_chart2table prophetnet
qwen3_asr recurrent_gemma roberta roberta-prelayernorm roc_bert roformer seamless_m4t seamless_m4t_v2 shieldgemma2 smollm3
speech_to_text speecht5 squeezebert starcoder2 switch_transformers t5 t5gemma t5gemma2 tapas trocr udop umt5 vaultgemma
visual_bert voxtral_realtime whisper xglm xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso youtu zamba zamba2 zaya
"""
FAMILIES = frozenset(_FAMILIES.split())
"""``model_type`` of configurations of transformers 5.23 whose ``tie_word_embeddings`` is true where they do not say."""
_ARCHITECTURES = """
afmoe arcee arctic bailingmoe3 bitnet bloom chameleon chatglm cogvlm cohere2 cohere2moe command-r deci deepseek deepseek2
deepseek2-ocr deepseek32 dots3note dream ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma2
gemma3 gemma3n gemma4 glm-dsa glm4 glm4moe gpt2 granite granite_swa granitehybrid granitemoe graniteswitch grok grovemoe
hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 jais2 jamba laguna lfm2 lfm2moe llada llama llama4 maincoder mamba
mamba2 minicpm minicpm3 minimax-01 mistral3 mistral4 mpt nanbeige nemotron_h nemotron_h_moe olmo openelm paddleocr
pangu-embedded phi3 plamo2 plamo3 plm qwen2 qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe qwen4exp
refact rnd1 seed_oss smallthinker smollm3 spark2_5 starcoder starcoder2 t5
"""
ARCHITECTURES = frozenset(_ARCHITECTURES.split())
"""Architectures of GGUF files whose loader in llama.cpp takes ``token_embd.weight`` in the place of an absent
``output.weight``, and whose graph gives logits."""
WITH_WORDS = re.compile(
    r"(CausalLM|LMHeadModel|LMHead|ConditionalGeneration|MaskedLM|(?<!ElectraFor)(?<!FunnelFor)(?<!FlavaFor)PreTraining|ModelWithLMHead"
    r"|MTModel|M4TModel|M4Tv2Model|DoubleHeadsModel|BertGenerationDecoder|BlockDiffusion|TextToText|SpeechToText)$"
)
"""Classes that give logits over words. Of others around such a body some classify, some give hidden vectors."""
OF_WORDS = re.compile(r"(MaskedLM|CausalLM|LMHeadModel|PreTraining|ModelWithLMHead)$")
"""Those whose tied head may be BERT's ``embeddings.word_embeddings``, with its bias: others have such a body within another."""
FLAG = "tie_word_embeddings"


def ties(config: Mapping[str, Any], name: str) -> bool | None:
    """Whether a model's output layer is its input embedding; None: nothing that is known here says so."""
    half = half_with_head(config)
    said = [part.get(FLAG) for part in (config, half)]
    for flag in said:
        if not (flag is None or isinstance(flag, bool)):
            raise MalformedFileError(f"{name}: {FLAG} is {flag!r}; expected true or false")
    if True in said or False in said:  # the parts of a model may differ in what they say
        return True in said
    family = config.get("model_type")
    if family in AROUND and half is not config:
        return ties(half, name)
    return True if isinstance(family, str) and family in FAMILIES else None
