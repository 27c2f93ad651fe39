"""A planned module in the training loops people use leaves the bits of plain training, whoever runs the loop."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.modules.devices import cpu_only, random_state
from tests.modules.generators import seeded
from tests.modules.torch_training import bits, planned

ON_CPU = cpu_only("these loops are told to use the CPU")

Fitted = tuple[list[float], dict[str, bytes], bytes]
"""Losses, parameters and buffers, and the random state afterwards."""


def fitted(losses: list[float], module: nn.Module) -> Fitted:
    return losses, {name: bits(value) for name, value in module.state_dict().items()}, bits(random_state())


def recomputing(module: nn.Module, args: tuple[Any, ...], budget: str, **kwargs: Any) -> nn.Module:
    """The module planned within ``budget``, which it cannot meet without recomputation."""
    made = planned(module, args, budget, kwargs=kwargs)
    assert plan_of(made).recomputed
    return made


def network() -> nn.Sequential:
    """Batch norms and dropouts: their statistics and masks are right only if recomputation is."""
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1))  # noqa: E731
    return nn.Sequential(*(block() for _ in range(4)))


@pytest.fixture(scope="module")
def examples() -> TensorDataset:
    generator = seeded(1)
    return TensorDataset(torch.randn(32, 16, generator=generator), torch.randn(32, 16, generator=generator))


@ON_CPU
class TestAccelerate:
    def fit(self, model: nn.Module, examples: TensorDataset, precision: str = "no") -> Fitted:
        accelerate = pytest.importorskip("accelerate")
        torch.manual_seed(3)
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # one precision per process
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = DataLoader(examples, batch_size=8, shuffle=True)
        model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
        losses = []
        for x, y in [*batches, *batches]:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        return fitted(losses, accelerator.unwrap_model(model))

    def test_accumulated_and_clipped_gradients_train_to_the_same_bits(self, examples: TensorDataset) -> None:
        pytest.importorskip("accelerate")
        model = recomputing(network(), (examples[:8][0],), "80%")
        assert self.fit(model, examples) == self.fit(network(), examples)

    def test_a_module_planned_under_autocast_trains_in_mixed_precision_to_the_same_bits(
        self, examples: TensorDataset
    ) -> None:
        pytest.importorskip("accelerate")
        with torch.autocast("cpu", torch.bfloat16):
            model = recomputing(network(), (examples[:8][0],), "80%")
        assert self.fit(model, examples, "bf16") == self.fit(network(), examples, "bf16")


@ON_CPU
class TestLightning:
    def module(self, net: nn.Module) -> Any:
        lightning = pytest.importorskip("lightning")

        class Regression(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.net = net
                self.losses: list[float] = []

            def forward(self, x: Tensor) -> Tensor:
                return self.net(x)

            def training_step(self, batch: Any, _: int) -> Tensor:
                loss = nn.functional.mse_loss(self(batch[0]), batch[1])
                self.losses.append(loss.item())
                return loss

            def validation_step(self, batch: Any, _: int) -> None:
                self.losses.append(nn.functional.mse_loss(self(batch[0]), batch[1]).item())

            def configure_optimizers(self) -> Any:
                return torch.optim.AdamW(self.parameters(), lr=0.01)

        return Regression()

    def fit(self, module: Any, examples: TensorDataset, folder: Path) -> Fitted:
        lightning = pytest.importorskip("lightning")
        torch.manual_seed(3)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=1.0, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        validation = DataLoader(examples, batch_size=5)  # evaluation takes any shape
        trainer.fit(module, DataLoader(examples, batch_size=8, shuffle=True), validation)
        return fitted(module.losses, module)

    @pytest.mark.filterwarnings("ignore")
    def test_a_planned_network_inside_trains_to_the_same_bits(self, examples: TensorDataset, tmp_path: Path) -> None:
        plain = self.module(network())
        made = self.module(recomputing(network(), (examples[:8][0],), "80%"))
        assert self.fit(made, examples, tmp_path) == self.fit(plain, examples, tmp_path)

    @pytest.mark.filterwarnings("ignore")
    def test_a_planned_lightning_module_trains_to_the_same_bits(self, examples: TensorDataset, tmp_path: Path) -> None:
        plain = self.module(network())
        made = recomputing(self.module(network()), (examples[:8][0],), "80%")
        assert self.fit(made, examples, tmp_path) == self.fit(plain, examples, tmp_path)


@ON_CPU
class TestHuggingFaceTrainer:
    """Batches reach the model by keyword, with the number of labels of the whole accumulated batch among them."""

    @pytest.fixture
    def rows(self) -> list[dict[str, Any]]:
        ids = torch.randint(0, 64, (24, 16), generator=seeded(1))
        return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]

    def model(self) -> Any:
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        # Fused attention would let Python look into the attention mask to choose a kernel.
        config = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0,
            use_cache=False, attn_implementation="eager",
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config).train()

    def planned(self, rows: list[dict[str, Any]]) -> Any:
        batch = pytest.importorskip("transformers").default_data_collator(rows[:4])
        return recomputing(self.model(), (), "70%", num_items_in_batch=torch.tensor(120.0), **batch)

    def fit(self, model: Any, rows: list[dict[str, Any]], folder: Path) -> Fitted:
        transformers = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
        arguments = transformers.TrainingArguments(
            str(folder), max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1,
            eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=3, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, learning_rate=0.01, seed=7,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:3])
        trainer.train()
        trainer.save_model(str(folder))
        logged = [value for entry in trainer.state.log_history for key, value in entry.items() if key.endswith("loss")]
        return fitted(logged, model)

    def test_training_and_evaluation_leave_the_same_bits(self, rows: list[dict[str, Any]], tmp_path: Path) -> None:
        assert self.fit(self.planned(rows), rows, tmp_path) == self.fit(self.model(), rows, tmp_path)

    def test_what_it_saves_loads_as_the_plain_class(self, rows: list[dict[str, Any]], tmp_path: Path) -> None:
        _, state, _ = self.fit(self.planned(rows), rows, tmp_path)
        loaded = type(self.model()).from_pretrained(tmp_path)
        assert {name: bits(value) for name, value in loaded.state_dict().items()} == state


class TestWhatTrainersRelyOn:
    """How a trainer looks at a module, and how it calls it; needs no package."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
            return (self.linear(x) - (0.0 if labels is None else labels)).square().mean()

    @pytest.fixture
    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.ones(4, 6), "labels": torch.zeros(4, 6)}

    def test_the_signature_of_its_forward_is_the_original_one(self, batch: dict[str, Tensor]) -> None:
        made = planned(self.Net(), (), kwargs=batch)
        assert inspect.signature(made.forward) == inspect.signature(self.Net().forward)

    @pytest.mark.values
    def test_keyword_arguments_come_in_any_order(self, batch: dict[str, Tensor]) -> None:
        made = planned(self.Net(), (), kwargs=batch)
        assert torch.equal(made(labels=batch["labels"], x=batch["x"]), made(**batch))
