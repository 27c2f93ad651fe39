"""The node test cases that are refused, by reason; each is tested to fail with the message given here."""

from __future__ import annotations

import re

from tests.files.node_cases import cases

PATTERNS = {
    # Loop and Scan run their body a number of times that is part of the data; so do the expansions that use one.
    r"linear_attention_.*_expanded|loop1.*|range_.*_expanded|scan.*": "is a loop",
    # A sequence handed in from outside has an unknown length, and SequenceMap runs once per tensor of it.
    r"sequence_map_.*|identity_sequence|sequence_insert_at_.*": "is a loop|is a sequence|makes it a loop",
    # An optional value may or may not be there when the model runs.
    r".*_opt|optional_.*_element_.*": "optional",
    # Strings have no size in bytes, and no gradient.
    r"equal_string.*|regex_full_match_.*|string_.*|strnormalizer_.*": "string",
    # Only the bytes of a compressed image tell its size.
    r"image_decoder_.*": "decodes a compressed image",
    # Classical machine learning has no training semantics in PyTorch.
    r"ai_onnx_ml_.*": "classical machine learning",
    # An optimizer step lies outside the training step that is planned.
    r"adagrad.*|adam.*|.*momentum.*": "is an optimizer step",
    # A preview op may still change its definition.
    r"flexattention(?!.*expanded).*": "is a preview",
}
EXCLUDED = {
    name: message
    for name in cases()
    for pattern, message in PATTERNS.items()
    if re.fullmatch(f"test_({pattern})", name)
}
"""By case, a pattern of the error."""

CHARGEABLE = frozenset(
    name
    for name in EXCLUDED
    if re.search(r"ml_(array|binarizer|tree)|ada|momentum|attention(_(scaled|gqa|diff_head_sizes|fp16|double))?$", name)
)
"""Those that are planned when asked to charge what is unknown."""
