"""Language models of the stress run: encoders, decoders, encoder-decoders, experts, state spaces and recurrences."""

from __future__ import annotations

from typing import Any

from models.architectures.case import LENGTH, VOCABULARY, Case, Group, padding, tokens

_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    **_SPECIAL,
}
_LLAMA = _BERT | {"num_key_value_heads": 2, "attention_dropout": 0.1, "use_cache": False}
_EXPERTS = _LLAMA | {"num_experts_per_tok": 2, "output_router_logits": False}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "use_cache": False,
    "decoder_start_token_id": 1,
    **_SPECIAL,
    "forced_eos_token_id": None,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "use_cache": False,
}


def _labelled(length: int = LENGTH) -> dict[str, Any]:
    """Token ids with padding and labels, as a trainer passes them."""
    return {"input_ids": tokens(length), "attention_mask": padding(length), "labels": tokens(length, seed=4)}


def _unpadded() -> dict[str, Any]:
    return {"input_ids": tokens(), "labels": tokens(seed=4)}


def _pairs() -> dict[str, Any]:
    return {"input_ids": tokens(), "attention_mask": padding(), "labels": tokens(16, seed=4)}


def _bare() -> dict[str, Any]:
    return {"input_ids": tokens(), "attention_mask": padding()}


def _encoders() -> list[Case]:
    group = Group("encoder", _BERT, _labelled, "ForMaskedLM")
    for name, model in (
        ("bert", "Bert"),
        ("roberta", "Roberta"),
        ("electra", "Electra"),
        ("mpnet", "MPNet"),
        ("ernie", "Ernie"),
        ("megatron_bert", "MegatronBert"),
        ("rembert", "RemBert"),
        ("xlm_roberta", "XLMRoberta"),
        ("layoutlm", "LayoutLM"),
        ("data2vec_text", "Data2VecText"),
        ("camembert", "Camembert"),
        ("xlm_roberta_xl", "XLMRobertaXL"),
    ):
        group.add(name, model)
    group.add("albert", "Albert", embedding_size=16)
    group.add(
        "distilbert",
        "DistilBert",
        vocab_size=VOCABULARY,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        without=tuple(set(_BERT) - set(_SPECIAL) - {"max_position_embeddings"}),
    )
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
    )
    group.add("roformer", "RoFormer", embedding_size=32)
    group.add("nystromformer", "Nystromformer", num_landmarks=LENGTH, segment_means_seq_len=LENGTH)
    group.add("fnet", "FNet", inputs=_unpadded)
    group.add("longformer", "Longformer", attention_window=[8, 8])
    group.add("big_bird", "BigBird", attention_type="original_full")
    group.add("convbert", "ConvBert", embedding_size=32, num_groups=2)
    group.add(
        "squeezebert", "SqueezeBert", embedding_size=32, q_groups=2, k_groups=2, v_groups=2, intermediate_groups=2
    )
    group.add("mobilebert", "MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16)
    group.add("ibert", "IBert")
    group.add("modernbert", "ModernBert", global_attn_every_n_layers=2, local_attention=8, attention_dropout=0.1)
    group.add("esm", "Esm", position_embedding_type="rotary", mask_token_id=4, token_dropout=False)
    group.add(
        "funnel",
        "Funnel",
        without=("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
        block_sizes=[1, 1],
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=64,
    )
    group.add("yoso", "Yoso")
    group.add("mra", "Mra")
    group.add("roc_bert", "RoCBert", enable_pronunciation=False, enable_shape=False)
    other = Group("encoder", _BERT, _bare)
    other.add("bert_pooled", "BertModel")
    other.add("canine", "CanineModel", downsampling_rate=4, local_transformer_stride=8, num_hash_buckets=64)
    other.add("lilt", "LiltModel", hidden_size=48, channel_shrink_ratio=4)
    return group.made + other.made


def _decoders() -> list[Case]:
    group = Group("decoder", _LLAMA, _labelled, "ForCausalLM")
    for name, model in (
        ("llama", "Llama"),
        ("mistral", "Mistral"),
        ("qwen2", "Qwen2"),
        ("phi", "Phi"),
        ("phi3", "Phi3"),
        ("stablelm", "StableLm"),
        ("starcoder2", "Starcoder2"),
        ("olmo", "Olmo"),
        ("olmo2", "Olmo2"),
        ("cohere", "Cohere"),
        ("granite", "Granite"),
        ("smollm3", "SmolLM3"),
        ("persimmon", "Persimmon"),
        ("nemotron", "Nemotron"),
        ("apertus", "Apertus"),
        ("seed_oss", "SeedOss"),
        ("arcee", "Arcee"),
    ):
        group.add(name, model)
    group.add("llama_unpadded", "Llama", inputs=_unpadded)
    group.add("llama_eager", "Llama", attn_implementation="eager")
    group.add("llama_no_dropout", "Llama", attention_dropout=0.0)
    for name, model in (
        ("gemma", "Gemma"),
        ("gemma2", "Gemma2"),
        ("qwen3", "Qwen3"),
        ("glm", "Glm"),
        ("helium", "Helium"),
    ):
        group.add(name, model, head_dim=8)
    group.add("gemma3", "Gemma3", "Gemma3TextConfig", head_dim=8, sliding_window=8)
    group.add("mistral_window", "Mistral", sliding_window=8)
    group.add("falcon", "Falcon", num_kv_heads=2, new_decoder_architecture=True, attention_dropout=0.1)
    group.add("gpt_neox", "GPTNeoX", hidden_dropout=0.1)
    wide = Group("decoder", {"vocab_size": VOCABULARY, "use_cache": False, **_SPECIAL}, _labelled)
    wide.add("gpt2", "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=64)
    wide.add(
        "gpt2_unpadded",
        "GPT2LMHeadModel",
        "GPT2Config",
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        inputs=_unpadded,
    )
    wide.add(
        "gpt2_cache", "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=True
    )
    wide.add("gpt_bigcode", "GPTBigCodeForCausalLM", n_embd=32, n_layer=2, n_head=4, n_positions=64)
    wide.add("gptj", "GPTJForCausalLM", n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4)
    wide.add("codegen", "CodeGenForCausalLM", n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4)
    wide.add("openai_gpt", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", n_embd=32, n_layer=2, n_head=4, n_positions=64)
    wide.add("ctrl", "CTRLLMHeadModel", "CTRLConfig", n_embd=32, n_layer=2, n_head=4, n_positions=64, dff=64)
    wide.add(
        "gpt_neo",
        "GPTNeoForCausalLM",
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        window_size=8,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
        intermediate_size=64,
    )
    wide.add(
        "bloom", "BloomForCausalLM", hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.1, attention_dropout=0.1
    )
    wide.add("mpt", "MptForCausalLM", d_model=32, n_layers=2, n_heads=4, max_seq_len=64, expansion_ratio=2)
    wide.add(
        "opt",
        "OPTForCausalLM",
        hidden_size=32,
        num_hidden_layers=2,
        ffn_dim=64,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    )
    wide.add(
        "xglm", "XGLMForCausalLM", d_model=32, num_layers=2, attention_heads=4, ffn_dim=64, max_position_embeddings=64
    )
    wide.add(
        "biogpt",
        "BioGptForCausalLM",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    wide.add("xlnet", "XLNetLMHeadModel", "XLNetConfig", d_model=32, n_layer=2, n_head=4, d_inner=64)
    return group.made + wide.made


def _experts() -> list[Case]:
    group = Group("mixture of experts", _EXPERTS, _labelled, "ForCausalLM")
    group.add("mixtral", "Mixtral", num_local_experts=4)
    group.add("mixtral_batched", "Mixtral", num_local_experts=4, experts_implementation="batched_mm")
    group.add("mixtral_grouped", "Mixtral", num_local_experts=4, experts_implementation="grouped_mm")
    group.add("mixtral_eager", "Mixtral", num_local_experts=4, experts_implementation="eager")
    sparse = {"num_experts": 4, "moe_intermediate_size": 32}
    group.add("qwen2_moe", "Qwen2Moe", shared_expert_intermediate_size=32, **sparse)
    group.add("qwen3_moe", "Qwen3Moe", head_dim=8, **sparse)
    group.add("olmoe", "Olmoe", **sparse)
    group.add("granitemoe", "GraniteMoe", num_local_experts=4)
    group.add("phimoe", "Phimoe", num_local_experts=4)
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
    switch.add(
        "switch_transformers",
        "SwitchTransformersForConditionalGeneration",
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_decoder_layers=2,
    )
    return group.made + switch.made


def _encoder_decoders() -> list[Case]:
    group = Group("encoder-decoder", _BART, _pairs, "ForConditionalGeneration")
    for name, model in (
        ("bart", "Bart"),
        ("mbart", "MBart"),
        ("pegasus", "Pegasus"),
        ("blenderbot", "Blenderbot"),
        ("mvp", "Mvp"),
        ("blenderbot_small", "BlenderbotSmall"),
        ("m2m_100", "M2M100"),
        ("plbart", "PLBart"),
    ):
        group.add(name, model)
    group.add(
        "led",
        "LED",
        attention_window=[8],
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
        without=("max_position_embeddings",),
    )
    marian = Group("encoder-decoder", _BART, _pairs)
    marian.add("marian", "MarianMTModel", "MarianConfig", share_encoder_decoder_embeddings=True)
    t5 = Group("encoder-decoder", _T5, _pairs, "ForConditionalGeneration")
    t5.add("t5", "T5")
    t5.add("mt5", "MT5", feed_forward_proj="gated-gelu")
    t5.add("umt5", "UMT5")
    t5.add("longt5", "LongT5", local_radius=7)
    return group.made + marian.made + t5.made


def _recurrent() -> list[Case]:
    shared = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False, **_SPECIAL}
    group = Group("state space", shared, _labelled, "ForCausalLM")
    group.add("mamba", "Mamba", state_size=8)
    group.add("falcon_mamba", "FalconMamba", state_size=8)
    group.add("mamba2", "Mamba2", num_heads=8, head_dim=8, state_size=8, n_groups=1, chunk_size=8)
    group.add(
        "jamba",
        "Jamba",
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
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
    group.add(
        "bamba",
        "Bamba",
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_chunk_size=8,
    )
    rest = Group("recurrent", shared, _labelled, "ForCausalLM")
    rest.add("rwkv", "Rwkv", attention_hidden_size=32, context_length=64)
    rest.add(
        "recurrent_gemma",
        "RecurrentGemma",
        num_attention_heads=4,
        num_key_value_heads=1,
        intermediate_size=64,
        lru_width=32,
        attention_window_size=16,
    )
    rest.add("xlstm", "xLSTM", num_heads=4, num_blocks=2)
    return group.made + rest.made


CASES = _encoders() + _decoders() + _experts() + _encoder_decoders() + _recurrent()
