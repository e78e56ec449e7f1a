"""Models of the shapes of GPT-2, Gemma 3 (270m) and a small Llama: random weights, an output layer like a trained one's.

An untrained output layer is flat: every direction carries the same energy and every token is about as likely. Here row i
of the layer is

    w_i = s Q (j^-1/2 g_ij)_j        g standard normal, Q a random rotation

so that logit energy falls with the direction as j^-1 (trained layers fall as fast or faster, and are easier), and ``s``
is such that the mean entropy of the next token is what was asked for: about 3 nats for a trained model of this size on
running text. The layer is not tied: an untrained tied model repeats its input.
"""

from __future__ import annotations

from typing import Any

import torch

VECTORS = 64
"""Hidden vectors whose next tokens decide the scale."""


def shaped(name: str) -> Any:
    """The model, float32, its output layer at scale 1."""
    import transformers as hf

    torch.manual_seed(0)
    if name == "gpt2":
        model: Any = hf.GPT2LMHeadModel(hf.GPT2Config(tie_word_embeddings=False))
    elif name == "llama":  # Llama 3's tokens over a model as small as people run on a CPU's one core
        sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
        sizes |= {"num_key_value_heads": 2, "vocab_size": 128_256}
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, tie_word_embeddings=False))
    else:
        sizes = {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262_144}
        model = hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**sizes, tie_word_embeddings=False))
    model.eval()
    weight = model.get_output_embeddings().weight
    turn = torch.linalg.qr(torch.randn(weight.shape[1], weight.shape[1])).Q
    falling = torch.arange(1, weight.shape[1] + 1).float().rsqrt()
    with torch.no_grad():
        for part in weight.split(16_384):
            part.copy_(torch.randn(part.shape) * falling @ turn)
    return model


def uncertain(model: Any, entropy: float) -> dict[str, float]:
    """Scale the output layer until next tokens have this mean entropy in nats; what it and the nucleus then are."""
    with torch.no_grad():
        logits = model(prompts(model, VECTORS), logits_to_keep=1).logits[:, -1].double()
        low, high = 0.0, 1.0
        while mean_entropy(logits * high) > entropy:
            low, high = high, 2 * high
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if mean_entropy(logits * middle) > entropy else (low, middle)
        model.get_output_embeddings().weight.mul_(high)
        chances = (logits * high).softmax(-1).sort(-1, descending=True).values
    sizes = ((chances.cumsum(-1) < 0.95).sum(-1) + 1).double()
    return {
        "entropy": mean_entropy(logits * high), "nucleus_median": sizes.median().item(), "nucleus_largest": sizes.max().item(),
        "likeliest_median": chances[:, 0].median().item(),
    }  # fmt: skip


def mean_entropy(logits: torch.Tensor) -> float:
    """In nats."""
    return float(-(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean())


def prompts(model: Any, count: int, length: int = 12, seed: int = 1) -> torch.Tensor:
    """Random tokens ``[count, length]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, model.get_output_embeddings().weight.shape[0], (count, length), generator=generator)
