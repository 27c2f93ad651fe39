"""The node test cases that are refused, by reason; each is tested to fail with the message given here."""

from __future__ import annotations

# Loop and Scan run their body a number of times that is part of the data; so do the expansions that use one.
_LOOPS = """
linear_attention_linear_expanded linear_attention_gated_expanded linear_attention_gated_per_head_decay_expanded
linear_attention_delta_expanded linear_attention_gated_delta_expanded
linear_attention_gated_delta_beta_scalar_expanded linear_attention_gated_delta_gqa_expanded
linear_attention_gated_delta_mqa_expanded linear_attention_decode_step_expanded
linear_attention_prefill_with_past_expanded linear_attention_no_past_explicit_zeros_expanded
linear_attention_explicit_scale_expanded linear_attention_fp16_expanded linear_attention_linear_t1_no_past_expanded
loop11 loop13_seq loop16_seq_none range_float_type_positive_delta_expanded
range_float16_type_positive_delta_expanded range_bfloat16_type_positive_delta_expanded
range_int32_type_negative_delta_expanded scan_sum scan9_sum scan9_multi_state scan9_scalar
"""
# A sequence handed in from outside has an unknown length, and SequenceMap runs once per tensor of it.
_SEQUENCES = """
sequence_map_identity_1_sequence sequence_map_identity_1_sequence_expanded sequence_map_identity_2_sequences
sequence_map_identity_2_sequences_expanded sequence_map_identity_1_sequence_1_tensor
sequence_map_identity_1_sequence_1_tensor_expanded sequence_map_add_2_sequences
sequence_map_add_2_sequences_expanded sequence_map_add_1_sequence_1_tensor
sequence_map_add_1_sequence_1_tensor_expanded sequence_map_extract_shapes sequence_map_extract_shapes_expanded
identity_sequence sequence_insert_at_back sequence_insert_at_front
"""
# An optional value may or may not be there when the model runs.
_OPTIONALS = """
identity_opt if_opt optional_get_element_optional_tensor optional_get_element_tensor
optional_get_element_optional_sequence optional_get_element_sequence optional_has_element_tensor_input
optional_has_element_optional_input optional_has_element_empty_no_input_name_tensor_input
optional_has_element_empty_no_input_tensor_input optional_has_element_empty_optional_input
optional_has_element_empty_no_input_name_optional_input optional_has_element_empty_no_input_optional_input
"""
# Strings have no size in bytes, and no gradient.
_STRINGS = """
equal_string equal_string_broadcast regex_full_match_basic regex_full_match_email_domain regex_full_match_empty
string_concat string_concat_broadcasting string_concat_zero_dimensional string_concat_empty_string
string_concat_utf8 string_split_basic string_split_maxsplit string_split_consecutive_delimiters
string_split_empty_string_delimiter string_split_no_delimiter string_split_empty_tensor
strnormalizer_nostopwords_nochangecase strnormalizer_export_monday_casesensintive_nochangecase
strnormalizer_export_monday_casesensintive_lower strnormalizer_export_monday_casesensintive_upper
strnormalizer_export_monday_empty_output strnormalizer_export_monday_insensintive_upper_twodim
"""
# Only the bytes of a compressed image tell its size.
_IMAGES = """
image_decoder_decode_jpeg_rgb image_decoder_decode_jpeg_grayscale image_decoder_decode_jpeg_bgr
image_decoder_decode_jpeg2k_rgb image_decoder_decode_bmp_rgb image_decoder_decode_png_rgb
image_decoder_decode_tiff_rgb image_decoder_decode_webp_rgb image_decoder_decode_pnm_rgb
"""
# Classical machine learning has no training semantics in PyTorch.
_CLASSICAL = """
ai_onnx_ml_array_feature_extractor ai_onnx_ml_binarizer ai_onnx_ml_label_encoder_string_int
ai_onnx_ml_label_encoder_string_int_no_default ai_onnx_ml_label_encoder_tensor_mapping
ai_onnx_ml_label_encoder_tensor_value_only_mapping ai_onnx_ml_tree_ensemble_single_tree
ai_onnx_ml_tree_ensemble_set_membership
"""
# An optimizer step lies outside the training step that is planned.
_OPTIMIZERS = """
adagrad adagrad_multiple adam adam_multiple momentum nesterov_momentum momentum_multiple
"""
# A preview op may still change its definition.
_PREVIEWS = """
flexattention flexattention_scaled flexattention_gqa flexattention_diff_head_sizes flexattention_score_mod
flexattention_prob_mod flexattention_fp16 flexattention_double flexattention_causal_mask flexattention_soft_cap
flexattention_relative_positional
"""

_GROUPS = (
    ("is a loop", _LOOPS),
    ("is a loop|is a sequence|makes it a loop", _SEQUENCES),
    ("optional", _OPTIONALS),
    ("string", _STRINGS),
    ("decodes a compressed image", _IMAGES),
    ("classical machine learning", _CLASSICAL),
    ("is an optimizer step", _OPTIMIZERS),
    ("is a preview", _PREVIEWS),
)
EXCLUDED = {f"test_{name}": message for message, names in _GROUPS for name in names.split()}
"""By case, a pattern of the error."""

_CHARGEABLE = """
flexattention flexattention_scaled flexattention_gqa flexattention_diff_head_sizes flexattention_fp16
flexattention_double ai_onnx_ml_array_feature_extractor ai_onnx_ml_binarizer ai_onnx_ml_tree_ensemble_single_tree
ai_onnx_ml_tree_ensemble_set_membership adagrad adagrad_multiple adam adam_multiple momentum nesterov_momentum
momentum_multiple
"""
CHARGEABLE = frozenset(f"test_{name}" for name in _CHARGEABLE.split())
"""Those that are planned when asked to charge what is unknown."""
