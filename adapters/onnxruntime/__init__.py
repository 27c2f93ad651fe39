"""Training by a plan in ONNX Runtime: the trainer, its optimizers and what it tells after each step."""

from __future__ import annotations

from .optimizers import SGD as SGD
from .optimizers import AdamW as AdamW
from .trainer import Progress as Progress
from .trainer import Trainer as Trainer
