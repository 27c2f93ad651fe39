"""Variables of the processes of this folder. Without torch: the first day must begin where that fails to load."""

from __future__ import annotations

import os

STANDIN = "CUDA_STANDIN" in os.environ
STANDIN_MEMORY = "STANDIN_MEMORY"
"""The variable that sets the bytes of the stand-in's card."""
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""The variable of the allocator's settings; torch prefers it to PYTORCH_ALLOC_CONF where both are set."""
EXPANDABLE = "expandable_segments:True"
"""The setting of `ALLOCATOR` with which freed memory is reserved again at other sizes."""
