"""All private names of torch are in torch_private.py, which says which one a torch version lacks."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from ogc_plan.adapters.inductor import torch_private as compiler_private
from ogc_plan.adapters.pytorch import torch_private

FOLDER = Path(__file__).resolve().parents[2] / "adapters"
DOORS = {
    FOLDER / "pytorch" / "torch_private.py": torch_private,
    FOLDER / "inductor" / "torch_private.py": compiler_private,
}
NEEDED = [*torch_private.NEEDED, *compiler_private.NEEDED]
ATTRIBUTES = {name.split(".")[-1] for name in NEEDED if name.split(".")[-1].startswith("_")} | {"_schema"}


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of nested attributes; empty if they do not start at a name."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def private(name: str) -> bool:
    """Whether a name of torch is private; operators never are."""
    parts = name.split(".")
    if name.startswith("torch.ops."):
        return False
    return parts[0] == "torch" and any(part.startswith("_") and not part.startswith("__") for part in parts)


def private_names(path: Path) -> list[str]:
    """Every private name of torch that a file uses, with its line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)] if node.attr not in ATTRIBUTES else [f"torch.{node.attr}"]
        found += [f"{path.name}:{node.lineno} {name}" for name in names if private(name)]
    return found


@pytest.mark.parametrize(
    "path", [p for p in sorted(FOLDER.rglob("*.py")) if p not in DOORS], ids=lambda path: path.name
)
def test_no_other_file_uses_a_private_name(path: Path) -> None:
    assert private_names(path) == []


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.parent.name)
def test_a_door_checks_every_name_that_it_imports(door: Path) -> None:
    tree = ast.parse(door.read_text(encoding="utf-8"))
    imported = {f"{node.module}.{alias.name}" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                for alias in node.names if private(str(node.module))}  # fmt: skip
    assert {name for name in imported if not any(needed.startswith(name) for needed in NEEDED)} == set()


REMOVABLE = [
    name for name in torch_private.NEEDED if not name.startswith(("torch.Tensor", "torch.Untyped", "torch.ops"))
]


@pytest.mark.parametrize("name", [name for name in REMOVABLE if "DispatchKey" not in name and ".config." not in name])
def test_a_missing_name_is_one_clear_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, attribute = name.rpartition(".")
    monkeypatch.delattr(resolve_name(module), attribute)
    with pytest.raises(torch_private.TorchVersionError) as refused:
        torch_private.check()
    assert refused.value.message == f"torch {torch.__version__} lacks {name}, which planned training needs"


def test_the_error_tells_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    with pytest.raises(torch_private.TorchVersionError, match=r"torch 2\.10\.1\+cpu is too old") as refused:
        torch_private.check()
    assert "install torch 2.11 or newer" in str(refused.value.remedy)


def test_another_signature_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("torch._functorch.aot_autograd")
    monkeypatch.setattr(module, "aot_export_joint_with_descriptors", lambda module, *args: None)
    with pytest.raises(torch_private.TorchVersionError, match=r"\(stack, mod, args, kwargs\)"):
        torch_private.check()


def test_a_missing_name_is_an_error_when_the_adapter_is_first_used() -> None:
    code = (
        "import torch, torch._functorch.aot_autograd as a; del a.aot_export_joint_with_descriptors\n"
        "import ogc_plan.adapters.pytorch as p\n"
        "try: p.within_budget\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"TorchVersionError torch {torch.__version__} lacks torch._functorch.aot_autograd.")
