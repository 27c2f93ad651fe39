"""Language models: encoders, decoders, experts, encoder-decoders, state spaces and recurrences."""

from __future__ import annotations

from typing import Any

from models.architectures.case import LENGTH, VOCABULARY, Case, Feed, Group, padded, tokens

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LARGER = {"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 512}
_STACKS = ("encoder_layers", "decoder_layers")
_HEADS = ("encoder_attention_heads", "decoder_attention_heads")
_HIDDEN = ("encoder_ffn_dim", "decoder_ffn_dim")

_BERT = {"vocab_size": VOCABULARY, **SIZES, "max_position_embeddings": 64, **SPECIAL}
_LLAMA = _BERT | {"num_key_value_heads": 2, "attention_dropout": 0.1, "use_cache": False}
_EXPERTS = _LLAMA | {"num_experts_per_tok": 2, "output_router_logits": False}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_LARGER_BERT = {"vocab_size": 1000, **LARGER, "max_position_embeddings": 256}
_LARGER_LLAMA = _LARGER_BERT | {"num_key_value_heads": 2, "attention_dropout": 0.0, "use_cache": False}


def two_stacks(width: int, layers: int, heads: int, hidden: int) -> dict[str, Any]:
    """The sizes of an encoder and a decoder alike."""
    sizes = {"d_model": width, **dict.fromkeys(_STACKS, layers), **dict.fromkeys(_HEADS, heads)}
    return sizes | dict.fromkeys(_HIDDEN, hidden) | {"use_cache": False}


def _t5(vocabulary: int, width: int, size: int, hidden: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"vocab_size": vocabulary, "d_model": width, "d_kv": size, "d_ff": hidden, "num_layers": layers}
    return sizes | {"num_heads": heads, "decoder_start_token_id": 0, "use_cache": False}


_T5 = _t5(VOCABULARY, 32, 8, 64, 2, 4) | {"pad_token_id": 0, "eos_token_id": 2}
_BART = two_stacks(32, 1, 4, 64) | SPECIAL | {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
_BART |= {"decoder_start_token_id": 1, "forced_eos_token_id": None}
_LARGER_BART = two_stacks(192, 2, 6, 512) | {"vocab_size": 1000, "max_position_embeddings": 256}


def _labelled() -> dict[str, Any]:
    """Token ids with padding and labels, as a trainer passes them."""
    return padded() | {"labels": tokens(seed=4)}


def _unpadded() -> dict[str, Any]:
    return {"input_ids": tokens(), "labels": tokens(seed=4)}


def _pairs() -> dict[str, Any]:
    return padded() | {"labels": tokens(16, seed=4)}


_PADDED = Feed("2x128 tokens, padded", lambda: padded(128))
_PAIRED = Feed("2x128 tokens, padded, to 2x96", lambda: padded(128) | {"decoder_input_ids": tokens(96)})


def _encoders() -> list[Case]:
    group = Group("encoder", _BERT, _labelled, "ForMaskedLM", larger=_LARGER_BERT, fed=_PADDED)
    group.add_each("bert=Bert roberta=Roberta", compared={})
    group.add_each(
        "electra=Electra mpnet=MPNet ernie=Ernie megatron_bert=MegatronBert rembert=RemBert xlm_roberta=XLMRoberta "
        "layoutlm=LayoutLM data2vec_text=Data2VecText camembert=Camembert xlm_roberta_xl=XLMRobertaXL"
    )
    group.add("albert", "Albert", embedding_size=16, compared={"embedding_size": 64})
    distilbert = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    larger = {"dim": 192, "n_layers": 3, "n_heads": 6, "hidden_dim": 512}
    group.add("distilbert", "DistilBert", **distilbert, without=tuple(SIZES), compared=larger)
    group.add("deberta", "Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"])
    group.add(
        "deberta_v2",
        "DebertaV2",
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        compared={"position_buckets": 32},
    )
    group.add("roformer", "RoFormer", embedding_size=32)
    group.add("nystromformer", "Nystromformer", num_landmarks=LENGTH, segment_means_seq_len=LENGTH)
    group.add("fnet", "FNet", inputs=_unpadded)
    group.add("longformer", "Longformer", attention_window=[8, 8])
    group.add("big_bird", "BigBird", attention_type="original_full")
    group.add("convbert", "ConvBert", embedding_size=32, num_groups=2)
    grouped = dict.fromkeys(("q_groups", "k_groups", "v_groups", "intermediate_groups"), 2)
    group.add("squeezebert", "SqueezeBert", embedding_size=32, **grouped)
    group.add("mobilebert", "MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16)
    group.add("ibert", "IBert")
    group.add("modernbert", "ModernBert", global_attn_every_n_layers=2, local_attention=8, attention_dropout=0.1)
    group.add("esm", "Esm", position_embedding_type="rotary", mask_token_id=4, token_dropout=False)
    funnel = {"block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64}
    group.add("funnel", "Funnel", without=tuple(SIZES), **funnel)
    group.add_each("yoso=Yoso mra=Mra")
    group.add("roc_bert", "RoCBert", enable_pronunciation=False, enable_shape=False)
    other = Group("encoder", _BERT, padded)
    other.add("bert_pooled", "BertModel")
    other.add("canine", "CanineModel", downsampling_rate=4, local_transformer_stride=8, num_hash_buckets=64)
    other.add("lilt", "LiltModel", hidden_size=48, channel_shrink_ratio=4)
    full = Feed("8x512 tokens, padded", lambda: padded(512, batch=8))
    group.add_compared("bert_base", "Bert", fed=full, full_size=True)
    return group.made + other.made


def _decoders() -> list[Case]:
    group = Group("decoder", _LLAMA, _labelled, "ForCausalLM", larger=_LARGER_LLAMA, fed=_PADDED)
    group.add("llama", "Llama", compared={"num_key_value_heads": 6})
    group.add("mistral", "Mistral", compared={"sliding_window": 64})
    group.add("qwen2", "Qwen2", compared={})
    group.add_each(
        "phi=Phi phi3=Phi3 stablelm=StableLm starcoder2=Starcoder2 olmo=Olmo olmo2=Olmo2 cohere=Cohere granite=Granite "
        "smollm3=SmolLM3 persimmon=Persimmon nemotron=Nemotron apertus=Apertus seed_oss=SeedOss arcee=Arcee"
    )
    group.add("llama_unpadded", "Llama", inputs=_unpadded)
    group.add("llama_eager", "Llama", attn_implementation="eager")
    group.add("llama_no_dropout", "Llama", attention_dropout=0.0)
    group.add("gemma", "Gemma", head_dim=8)
    group.add("gemma2", "Gemma2", head_dim=8, compared={"head_dim": 32, "query_pre_attn_scalar": 32})
    group.add("qwen3", "Qwen3", head_dim=8, compared={"head_dim": 32})
    group.add_each("glm=Glm helium=Helium", head_dim=8)
    group.add("gemma3", "Gemma3", "Gemma3TextConfig", head_dim=8, sliding_window=8)
    group.add("mistral_window", "Mistral", sliding_window=8)
    falcon = {"num_kv_heads": 2, "new_decoder_architecture": True}
    group.add("falcon", "Falcon", **falcon, attention_dropout=0.1, compared={"attention_dropout": 0.0})
    group.add("gpt_neox", "GPTNeoX", hidden_dropout=0.1)
    labels = Feed("2x128 tokens, padded, and labels", lambda: padded(128) | {"labels": tokens(128)}, "loss")
    group.add_compared("llama_loss", "Llama", fed=labels, **_LARGER_LLAMA)
    one_billion = {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "use_cache": False,
    }
    full = Feed("1x2048 tokens, padded", lambda: padded(2048, batch=1))
    group.add_compared("llama_1b", "Llama", fed=full, full_size=True, **one_billion)
    return group.made + _wide_decoders()


def _wide_decoders() -> list[Case]:
    """Decoders whose configurations have names of their own for sizes."""
    larger = {"vocab_size": 1000, "use_cache": False}
    group = Group(
        "decoder", {"vocab_size": VOCABULARY, "use_cache": False, **SPECIAL}, _labelled, larger=larger, fed=_PADDED
    )
    gpt2 = ("GPT2LMHeadModel", "GPT2Config")
    group.add("gpt2", *gpt2, **_GPT, compared={"n_embd": 192, "n_layer": 3, "n_head": 6, "n_positions": 256})
    full = Feed("8x1024 tokens, padded", lambda: padded(1024, batch=8))
    group.add_compared("gpt2_124m", *gpt2, fed=full, full_size=True, use_cache=False)
    group.add("gpt2_unpadded", *gpt2, **_GPT, inputs=_unpadded)
    group.add("gpt2_cache", *gpt2, **_GPT | {"use_cache": True})
    group.add("gpt_bigcode", "GPTBigCodeForCausalLM", **_GPT)
    group.add("gptj", "GPTJForCausalLM", **_GPT, rotary_dim=4)
    group.add("codegen", "CodeGenForCausalLM", **_GPT, rotary_dim=4)
    group.add("openai_gpt", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", **_GPT)
    group.add("ctrl", "CTRLLMHeadModel", "CTRLConfig", **_GPT, dff=64)
    local = {"window_size": 8, "attention_types": [[["global", "local"], 1]]}
    neo = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    group.add("gpt_neo", "GPTNeoForCausalLM", **neo, **local)
    bloom = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "hidden_dropout": 0.1, "attention_dropout": 0.1}
    published = {"hidden_size": 192, "n_layer": 3, "n_head": 6, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    group.add("bloom", "BloomForCausalLM", **bloom, compared=published)
    group.add("mpt", "MptForCausalLM", d_model=32, n_layers=2, n_heads=4, max_seq_len=64, expansion_ratio=2)
    sizes = {key: value for key, value in SIZES.items() if key != "intermediate_size"} | {"max_position_embeddings": 64}
    opt = LARGER | {"ffn_dim": 512, "max_position_embeddings": 256, "word_embed_proj_dim": 192}
    group.add("opt", "OPTForCausalLM", **sizes, ffn_dim=64, word_embed_proj_dim=32, compared=opt)
    xglm = {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64, "max_position_embeddings": 64}
    group.add("xglm", "XGLMForCausalLM", **xglm)
    group.add("biogpt", "BioGptForCausalLM", **sizes, intermediate_size=64)
    group.add("xlnet", "XLNetLMHeadModel", "XLNetConfig", d_model=32, n_layer=2, n_head=4, d_inner=64)
    return group.made


def _experts() -> list[Case]:
    larger = _LARGER_LLAMA | {"num_local_experts": 4, "experts_implementation": "batched_mm"}
    short = Feed("2x16 tokens, padded", lambda: padded(16))
    group = Group("mixture of experts", _EXPERTS, _labelled, "ForCausalLM", larger=larger, fed=short)
    group.add("mixtral", "Mixtral", num_local_experts=4, compared={})
    for name in ("batched_mm", "grouped_mm", "eager"):
        short_name = name.removesuffix("_mm")
        group.add(f"mixtral_{short_name}", "Mixtral", num_local_experts=4, experts_implementation=name)
    sparse = {"num_experts": 4, "moe_intermediate_size": 32}
    group.add("qwen2_moe", "Qwen2Moe", shared_expert_intermediate_size=32, **sparse)
    group.add("qwen3_moe", "Qwen3Moe", head_dim=8, **sparse)
    group.add("olmoe", "Olmoe", **sparse)
    group.add_each("granitemoe=GraniteMoe phimoe=Phimoe", num_local_experts=4)
    group.add("gpt_oss", "GptOss", num_local_experts=4, head_dim=8, sliding_window=8)
    group.add(
        "deepseek_v3",
        "DeepseekV3",
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        num_key_value_heads=4,
    )
    switch = Group("mixture of experts", _T5 | {"num_experts": 4, "expert_capacity": 8}, _pairs)
    sparse_layers = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_decoder_layers": 2}
    switch.add("switch_transformers", "SwitchTransformersForConditionalGeneration", **sparse_layers)
    return group.made + switch.made


def _encoder_decoders() -> list[Case]:
    group = Group("encoder-decoder", _BART, _pairs, "ForConditionalGeneration", larger=_LARGER_BART, fed=_PAIRED)
    group.add("bart", "Bart", compared={})
    group.add_each(
        "mbart=MBart pegasus=Pegasus blenderbot=Blenderbot mvp=Mvp blenderbot_small=BlenderbotSmall m2m_100=M2M100 "
        "plbart=PLBart"
    )
    places = dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), 64)
    group.add("led", "LED", attention_window=[8], **places, without=("max_position_embeddings",))
    marian = Group("encoder-decoder", _BART, _pairs)
    marian.add("marian", "MarianMTModel", "MarianConfig", share_encoder_decoder_embeddings=True)
    t5 = Group(
        "encoder-decoder", _T5, _pairs, "ForConditionalGeneration", larger=_t5(1000, 192, 32, 512, 3, 6), fed=_PAIRED
    )
    t5.add("t5", "T5", compared={})
    t5.add("mt5", "MT5", feed_forward_proj="gated-gelu")
    t5.add("umt5", "UMT5")
    t5.add("longt5", "LongT5", local_radius=7)
    return group.made + marian.made + t5.made


def _recurrent() -> list[Case]:
    shared = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False, **SPECIAL}
    larger = {"vocab_size": 1000, "hidden_size": 96, "num_hidden_layers": 2, "use_cache": False, "use_mambapy": False}
    group = Group("state space", shared, _labelled, "ForCausalLM", larger=larger, fed=_PADDED)
    group.add("mamba", "Mamba", state_size=8, compared={})
    group.add("falcon_mamba", "FalconMamba", state_size=8)
    group.add("mamba2", "Mamba2", num_heads=8, head_dim=8, state_size=8, n_groups=1, chunk_size=8)
    attention = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    group.add(
        "jamba",
        "Jamba",
        **attention,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=2,
        num_experts_per_tok=1,
        use_mamba_kernels=False,
        mamba_d_state=8,
        mamba_dt_rank=4,
    )
    mamba = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
    group.add("bamba", "Bamba", **attention, attn_layer_indices=[1], **mamba)
    rest = Group("recurrent", shared, _labelled, "ForCausalLM")
    rest.add("rwkv", "Rwkv", attention_hidden_size=32, context_length=64)
    window = {"lru_width": 32, "attention_window_size": 16, "num_key_value_heads": 1}
    rest.add("recurrent_gemma", "RecurrentGemma", **attention | window)
    rest.add("xlstm", "xLSTM", num_heads=4, num_blocks=2)
    return group.made + rest.made


CASES = _encoders() + _decoders() + _experts() + _encoder_decoders() + _recurrent()
