"""A planned module in the training loops people use leaves the bits of plain training, whoever runs the loop."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, within_budget
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


def unplanned(module: nn.Module) -> nn.Module:
    """The module bound without arguments: it is planned as its trainer calls it."""
    return within_budget(module, budget="min", effort="fast")


again_is_expected = pytest.mark.filterwarnings("ignore:planned .* again")


@ON_CPU
@again_is_expected
class TestNothingButABudget:
    """``within_budget(model, budget=...)`` is the only line more, and the trainer does what it does without it."""

    @pytest.mark.parametrize("precision", ["no", "bf16"])
    @pytest.mark.parametrize("bind_first", [True, False])
    def test_accelerate_with_a_smaller_last_batch(
        self, examples: TensorDataset, precision: str, bind_first: bool
    ) -> None:
        accelerate = pytest.importorskip("accelerate")

        def fit(bind: Any) -> Fitted:
            torch.manual_seed(3)
            accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
            accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
            model = bind(network()) if bind_first else network()
            model = accelerator.prepare(model)
            model = model if bind_first else bind(model)
            optimizer, batches = accelerator.prepare(
                torch.optim.AdamW(model.parameters(), lr=0.01), DataLoader(examples, batch_size=10, shuffle=True)
            )
            losses = []
            for x, y in [*batches, *batches]:
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return fitted(losses, model)

        assert fit(unplanned) == fit(lambda module: module)

    @pytest.mark.filterwarnings("ignore")
    def test_lightning_with_optimizers_that_freeze_each_other(self, examples: TensorDataset, tmp_path: Path) -> None:
        lightning = pytest.importorskip("lightning")

        class Adversaries(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self, bind: Any) -> None:
                super().__init__()
                self.automatic_optimization = False
                self.maker, self.judge = (
                    bind(network()),
                    bind(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))),
                )
                self.losses: list[float] = []

            def training_step(self, batch: Any, _: int) -> None:
                for optimizer, sign in zip(self.optimizers(), (1, -1), strict=True):
                    self.toggle_optimizer(optimizer)
                    loss = sign * (self.judge(self.maker(batch[0])) - self.judge(batch[1])).mean()
                    self.manual_backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    self.untoggle_optimizer(optimizer)
                    self.losses.append(loss.item())

            def configure_optimizers(self) -> Any:
                return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.maker, self.judge)]

        def fit(bind: Any) -> Fitted:
            torch.manual_seed(3)
            trainer = lightning.Trainer(
                accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                enable_model_summary=False, default_root_dir=tmp_path,
            )  # fmt: skip
            module = Adversaries(bind)
            trainer.fit(module, DataLoader(examples, batch_size=12))
            return fitted(module.losses, module)

        assert fit(unplanned) == fit(lambda module: module)

    @pytest.mark.filterwarnings("ignore:.*checkpoint")
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"bf16": True},
            {"gradient_accumulation_steps": 2},
            {"gradient_checkpointing": True},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
            {"neftune_noise_alpha": 5.0},
        ],
        ids=str,
    )
    def test_the_trainer_with_evaluations_checkpoints_and_a_resume(self, tmp_path: Path, options: Any) -> None:
        transformers = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
        ids = torch.randint(0, 64, (22, 16), generator=seeded(1))  # the last of its batches of 4 is smaller
        rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]

        def fit(bind: Any, folder: Path) -> Fitted:
            losses: list[float] = []
            for steps in (4, 8):  # the second run goes on from the checkpoint of the first
                torch.manual_seed(0)
                config = transformers.LlamaConfig(
                    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                    use_cache=False,
                )  # fmt: skip
                model = bind(transformers.LlamaForCausalLM(config))
                arguments = transformers.TrainingArguments(
                    str(folder), max_steps=steps, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=2,
                    per_device_eval_batch_size=5, save_strategy="steps", save_steps=3, logging_steps=1, report_to=[],
                    use_cpu=True, disable_tqdm=True, learning_rate=0.01, seed=7, **options,
                )  # fmt: skip
                trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:7])
                trainer.train(resume_from_checkpoint=steps > 4)
                history = trainer.state.log_history
                losses += [value for entry in history for key, value in entry.items() if key.endswith("loss")]
            return fitted(losses, model)

        assert fit(unplanned, tmp_path / "planned") == fit(lambda module: module, tmp_path / "plain")


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
