"""Tiny configurations of every text encoder the library is tested on, and of the models it must refuse.

Each entry builds on the spot, with random weights, in a few milliseconds: three layers, hidden size 32, a vocabulary
of 99 and special ids inside it (many configs default to ids of the real vocabulary, and 99 rows reject those).
Dropouts keep their defaults, so a test that compares numbers calls `.eval()`.

    >>> from transformers import AutoModel
    >>> encoder = AutoModel.from_config(tiny_encoder_config("bert")).eval()

Feed ids in 5..94, an attention mask and sequences of 4 to 40 tokens: that satisfies all of them. The sets below name
the types that leave the common path, and why; the facts were read off by running transformers 5.24.
"""

from __future__ import annotations

import copy
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig


_BERT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
# RoBERTa counts positions from pad_token_id + 1, so it needs two rows more for the same 64 tokens.
_ROBERTA = {**_BERT, "max_position_embeddings": 66, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
# LLaMA-like encoders: grouped keys, explicit head size.
_LLAMA = {**_BERT, "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
_XLM = {"vocab_size": 99, "emb_dim": 32, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64}
# Relative attention is off by default, but on in every published DeBERTa.
_DEBERTA = {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
_BART = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4}


def _without(kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in names}


TINY_ENCODERS: dict[str, dict[str, Any]] = {
    "albert": {**_BERT, "embedding_size": 16, "bos_token_id": 2, "eos_token_id": 3},
    "bert": _BERT,
    "bert-generation": {**_BERT, "bos_token_id": 2, "eos_token_id": 1},
    # "block_sparse", the default, turns to full attention at the first short input and stays there: start there.
    "big_bird": {**_BERT, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 3, "attention_type": "original_full"},
    "camembert": _ROBERTA,
    "convbert": {**_BERT, "embedding_size": 32, "conv_kernel_size": 3},
    "data2vec-text": _ROBERTA,
    "deberta": _DEBERTA,
    # The convolution is that of the xlarge checkpoints: with it hidden state 1 is not what layer 0 returns.
    "deberta-v2": {
        **_DEBERTA,
        "position_buckets": 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "distilbert": {
        "vocab_size": 99,
        "dim": 32,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": 64,
    },
    "electra": {**_BERT, "embedding_size": 16},
    "ernie": {**_BERT, "use_task_id": True},
    "esm": {**_ROBERTA, "mask_token_id": 4, "position_embedding_type": "rotary"},
    "esmc": {**_LLAMA, "num_key_value_heads": 4, "mask_token_id": 4},
    "eurobert": {**_LLAMA, "mask_token_id": 3},
    "flaubert": _XLM,
    "fnet": {**_without(_BERT, "num_attention_heads"), "pad_token_id": 3},
    "gte": {**_BERT, "pad_token_id": 1},
    "ibert": _ROBERTA,
    "jina_embeddings_v3": _ROBERTA,
    "layoutlm": _BERT,
    "layoutlmv3": {**_ROBERTA, "coordinate_size": 4, "shape_size": 8, "input_size": 16, "patch_size": 8},
    "longformer": {**_ROBERTA, "attention_window": [8, 8, 8], "sep_token_id": 2},
    "luke": {**_ROBERTA, "entity_vocab_size": 10, "entity_emb_size": 16},
    # max_depth is the length of two lists of embeddings: as long as the layer list, on purpose.
    "markuplm": {**_ROBERTA, "max_depth": 3},
    "megatron-bert": _BERT,
    # Four feed-forwards, the default, put three in a list inside every layer: as long as the layer list, on purpose.
    "mobilebert": {
        **_BERT,
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "true_hidden_size": 16,
        "num_feedforward_networks": 4,
    },
    "modernbert": {
        **_BERT,
        "local_attention": 8,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    # relative_attention_num_buckets must stay 32: the forward has that number written in.
    "mpnet": _ROBERTA,
    "neomme": {
        **_LLAMA,
        "head_dim": 16,
        "embedding_rank": 16,
        "embedding_dim": 16,
        "sliding_window": 8,
        "patch_size": 4,
    },
    "nomic_bert": {**_BERT, "head_dim": 8},
    # num_landmarks == segment_means_seq_len, the default, is the only setting that takes sequences of any length.
    "nystromformer": _ROBERTA,
    "openai_privacy_filter": {
        **_LLAMA,
        "bos_token_id": None,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "rembert": {
        **_BERT,
        "input_embedding_size": 16,
        "output_embedding_size": 16,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "roberta": _ROBERTA,
    "roberta-prelayernorm": _ROBERTA,
    "roc_bert": {
        **_BERT,
        "pronunciation_vocab_size": 99,
        "shape_vocab_size": 99,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "roformer": {**_BERT, "embedding_size": 16},
    "splinter": _BERT,
    "squeezebert": {
        **_BERT,
        "embedding_size": 32,
        "q_groups": 2,
        "k_groups": 2,
        "v_groups": 2,
        "intermediate_groups": 2,
        "output_groups": 2,
    },
    "tapas": _BERT,
    # A window of 4 makes its two sliding layers differ from its full one even on short inputs.
    "ultrabert": {**_LLAMA, "sliding_window": 4},
    "visual_bert": {**_BERT, "pad_token_id": 1},
    "xlm": _XLM,
    "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": _ROBERTA,
    "xlnet": {"vocab_size": 99, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 64, "d_head": 8},
    "xmod": {**_ROBERTA, "default_language": "en_XX", "languages": ["en_XX"]},
    # The sampled attention needs a CUDA kernel; its expectation runs anywhere.
    "yoso": {**_BERT, "use_expectation": True},
}

# The types RobertaHireConfig accepts.
ROBERTA_LIKE = {"roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "xlm-roberta-xl", "data2vec-text"}

# Padding moves a real token's hidden states by more than 1e-5 in the encoder itself, whatever is put on top.
PADDING_SENSITIVE = {
    "convbert": "its span-based convolution mixes neighbours and takes no mask",
    "fnet": "the Fourier transform runs over the padding; the forward ignores attention_mask",
    "nystromformer": "its convolution over the values takes no mask",
    "yoso": "multiplies by 1 + mask / 10000, meant for a mask of -10000, not for the smallest float",
}
# Not in the set, but so after training: mobilebert puts each token's right neighbour into its embedding, so a non-zero
# embedding of the padding token (zero in a fresh model) reaches the last real token. big_bird with
# attention_type="block_sparse" draws its random blocks by length, so there too padding changes a result.

# A planned layer list cannot be put in place of a single list.
PLAN_UNSUPPORTED = {
    "flaubert": "four parallel lists, a loop over n_layers, and a cache by layer id that is always filled",
    "xlm": "four parallel lists, a loop over n_layers, and a cache by layer id that is always filled",
    "neomme": "masks and value embeddings go by position, from per_layer_config and a set of indices",
}
# Follow a plan only with config.num_hidden_layers (and layer_types) as long as the plan while executing: they slice
# the layer list by the former, or look up the i-th layer type. Plain values silently drop layers, or raise.
PLAN_NEEDS_CONFIG = {"albert", "eurobert", "gte", "jina_embeddings_v3", "nomic_bert", "ultrabert"}

# Hooks on the layers do not see the hidden states as the encoder returns them: ask for output_hidden_states there.
STREAM_UNSUPPORTED = {
    "flaubert": "a layer is four modules; none has a hidden state as its input",
    "longformer": "layers work on a length rounded up to the attention window",
    "squeezebert": "calls layer.forward(), which runs no hook, with channels first",
    "xlm": "a layer is four modules; none has a hidden state as its input",
    "xlnet": "layers work with time first",
}

# Parameters (patterns for re.search on their names) that a text-only forward never uses, even where the pooler was
# left out: DDP stops on them unless they are frozen.
UNUSED_PARAMETERS = {
    "esm": r"^contact_head\.",
    "layoutlm": r"^pooler\.",
    "layoutlmv3": r"^(cls_token|pos_embed|patch_embed\.|LayerNorm\.|norm\.)|rel_pos(_[xy])?_bias\.",
    "longformer": r"\.(query|key|value)_global\.",
    "luke": r"^entity_embeddings\.|\.(w2e|e2w|e2e)_query\.",
    "markuplm": r"\.xpath_unitseq2_embeddings\.",
    "neomme": r"^patch_embeddings\.",
    "squeezebert": r"^pooler\.",
    "visual_bert": r"^embeddings\.visual_",
    "xlnet": r"^mask_emb$|\.(r_s_bias|seg_embed)$",
}

# Must be refused with a clear ValueError: type -> (config kwargs, why).
REFUSED_TYPES: dict[str, tuple[dict[str, Any], str]] = {
    # decoders: each token sees only its left, and a last-layer state is made to predict the next word
    "gpt2": (
        {
            "vocab_size": 99,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "decoder-only",
    ),
    "llama": (_without(_LLAMA, "pad_token_id"), "decoder-only"),
    "modernbert-decoder": (
        {
            **_BERT,
            "local_attention": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
        "decoder-only",
    ),
    "opt": (
        {
            **_without(_BERT, "intermediate_size"),
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
            "pad_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 2,
        },
        "decoder-only",
    ),
    "qwen2": (_without(_LLAMA, "pad_token_id", "head_dim"), "decoder-only"),
    # no attention module carries is_causal in these two: only the auto mappings tell
    "mamba": (
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "state_size": 8,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        "decoder-only",
    ),
    "xglm": (
        {
            "vocab_size": 99,
            "d_model": 32,
            "ffn_dim": 64,
            "num_layers": 3,
            "attention_heads": 4,
            "max_position_embeddings": 64,
        },
        "decoder-only",
    ),
    # sequence-to-sequence; bart and mbart stand in the masked-LM mapping all the same
    "bart": (_BART, "encoder-decoder"),
    "mbart": (_BART, "encoder-decoder"),
    "mt5": (_T5, "encoder-decoder"),
    "t5": (_T5, "encoder-decoder"),
    # hidden states that are not num_hidden_layers + 1 tensors of one shape ending in last_hidden_state
    "canine": (
        {
            **_without(_BERT, "vocab_size"),
            "downsampling_rate": 4,
            "num_hash_buckets": 64,
            "local_transformer_stride": 16,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "hidden states of two lengths: it downsamples the characters",
    ),
    "clip_text_model": (
        {**_BERT, "bos_token_id": 1, "eos_token_id": 2},
        "its last hidden state is taken before the final norm, and it is causal",
    ),
    "embedding_gemma2_text": (
        {**_LLAMA, "sliding_window": 4, "hidden_size_per_layer_input": 8, "embedding_dim": 16},
        "projects its last hidden state to another width",
    ),
    "funnel": (
        {
            "vocab_size": 99,
            "block_sizes": [1, 1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
            "num_decoder_layers": 1,
            # AutoModel raises a TypeError on a funnel config that names no architecture
            "architectures": ["FunnelModel"],
        },
        "hidden states of several lengths: it pools the sequence",
    ),
    "reformer": (
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "attention_head_size": 16,
            "feed_forward_size": 64,
            "axial_pos_embds": False,
            "attn_layers": ["local", "lsh", "local"],
            "local_attn_chunk_length": 8,
            "lsh_attn_chunk_length": 8,
            "num_buckets": 2,
            "max_position_embeddings": 64,
            "is_decoder": False,
        },
        "reversible: its last hidden state is twice as wide",
    ),
    "tipsv2_text_model": (_BERT, "its last hidden state is taken before the final norm"),
    # inputs other than text
    "bros": (_BERT, "cannot run without boxes"),
    "lxmert": (
        {**_without(_BERT, "num_hidden_layers"), "l_layers": 3, "x_layers": 1, "r_layers": 1},
        "cannot run without images",
    ),
    "perceiver": (
        {
            "vocab_size": 99,
            "d_model": 32,
            "d_latents": 32,
            "num_latents": 8,
            "num_blocks": 1,
            "num_self_attends_per_block": 3,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "max_position_embeddings": 64,
        },
        "its main input is not input_ids",
    ),
    "vit": (
        {
            **_without(_BERT, "vocab_size", "max_position_embeddings", "pad_token_id"),
            "image_size": 16,
            "patch_size": 8,
        },
        "its main input is not input_ids",
    ),
    # dense passage retrieval returns a pooled vector only
    "dpr": (_BERT, "returns no last_hidden_state"),
}

# Must be refused although the type as such is good: (type, overrides, why).
REFUSED_VARIANTS: list[tuple[str, dict[str, Any], str]] = [
    ("albert", {"inner_group_num": 2}, "several hidden states a layer: 7 instead of 4"),
    ("bert", {"is_decoder": True}, "causal attention"),
    ("flaubert", {"causal": True}, "causal attention"),
    ("roberta", {"is_decoder": True}, "causal attention"),
    ("xlm", {"causal": True}, "causal attention"),
]

# Good encoders left out of TINY_ENCODERS: mra (without its CUDA kernel its attention is all zeros) and lilt (its
# hidden size must be a multiple of six).


def tiny_encoder_config(model_type: str, **overrides: Any) -> PreTrainedConfig:
    """Build the tiny config of `model_type`, from `TINY_ENCODERS` or `REFUSED_TYPES`, with `overrides` on top."""
    if model_type in TINY_ENCODERS:
        kwargs = TINY_ENCODERS[model_type]
    elif model_type in REFUSED_TYPES:
        kwargs = REFUSED_TYPES[model_type][0]
    else:
        known = ", ".join(sorted({*TINY_ENCODERS, *REFUSED_TYPES}))
        raise ValueError(f"model_type {model_type!r} has no tiny config; choose one of {known}.")
    # A config may keep the lists it is given, and a test may change them.
    return CONFIG_MAPPING[model_type](**{**copy.deepcopy(kwargs), **overrides})
