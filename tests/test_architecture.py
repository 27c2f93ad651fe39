"""Who may import whom, held by reading the source: one straight line, heavy packages at one door each."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("planner", "adapters", "cli")

# Low to high. A module imports lower levels and its own family, never a sibling family of its level.
LEVELS: tuple[tuple[frozenset[str], ...], ...] = tuple(
    tuple(frozenset(family.split()) for family in level)
    for level in (
        ("errors",),
        ("units", "graph", "json_text", "collecting"),
        ("training",),
        ("annotations",),
        (
            "onnx_reader reading",
            "backward backward_rules rules contraction costs devices flops op_workspace",
        ),
        ("dependences",),
        ("gradient_lives", "floor"),
        ("gradient_sets",),
        ("order_floor",),
        ("problem",),
        ("solution",),
        ("schedule",),
        ("strategies",),
        ("solving",),
        ("refusal",),
        ("simulate",),
        ("plan_record",),
        ("plan_writer", "plan_reader"),
        ("step_profile",),
        ("assumptions",),
        ("model",),
        ("pipeline",),
        ("tradeoff",),
        ("__init__",),
    )
)

# Third-party packages and the only files that may import them; a folder ends with a slash.
DOORS = {
    "ortools": tuple(f"planner/strategies/{name}.py" for name in ("linear_program", "cp_sat", "max_flow")),
    "onnx": ("planner/onnx_reader.py", "planner/reading/shapes.py", "planner/reading/constants.py"),
    "numba": ("planner/strategies/kernels.py",),
    "torch": ("adapters/pytorch/",),
    "onnxruntime": ("adapters/onnxruntime/",),
}
HEAVY = ("torch", "ortools", "numba", "onnx", "onnxruntime", "scipy", "networkx")


@dataclass(frozen=True)
class Import:
    """``path`` imports ``target``: planner/..., adapters/..., cli/... inside, a dotted name outside."""

    path: str
    target: str
    line: int
    type_checking: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


def resolve(parts: tuple[str, ...]) -> str:
    """The file of an inside module, as a path without suffix; a package stands for its __init__."""
    base = ROOT.joinpath(*parts)
    if base.with_suffix(".py").is_file():
        return "/".join(parts)
    if (base / "__init__.py").is_file():
        return "/".join((*parts, "__init__"))
    return ""


def named(parts: tuple[str, ...], names: list[str]) -> Iterator[str]:
    """The modules that ``from parts import names`` reaches: submodules where a name is one, else the module itself."""
    for name in names:
        found = resolve((*parts, name)) or resolve(parts)
        yield found or ".".join(("ogc_plan", *parts))


def imports(path: Path) -> Iterator[Import]:
    module = module_of(path)
    label = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, _, rest = alias.name.partition(".")
                inside = resolve(tuple(rest.split("."))) if first == "ogc_plan" and rest else ""
                targets.append(inside or alias.name)
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            dotted = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                targets += named((*module[: len(module) - node.level], *dotted), names)
            elif dotted[0] == "ogc_plan":
                targets += named(dotted[1:], names)
            else:
                targets.append(".".join(dotted))
        for target in targets:
            yield Import(label, target, node.lineno, id(node) in guarded)


ALL_IMPORTS = [found for path in sources() for found in imports(path)]
INSIDE = [found for found in ALL_IMPORTS if found.target.split("/")[0] in FOLDERS and "/" in found.target]


def place(module: str) -> tuple[int, int]:
    """(level, family) of a planner module given as planner/name or planner/strategies/name."""
    name = module.removesuffix(".py").split("/")[1]
    for level, families in enumerate(LEVELS):
        for family, members in enumerate(families):
            if name in members:
                return level, family
    raise AssertionError(f"{module} has no place in the order of layers: give it one in LEVELS")


def test_every_planner_module_has_a_place_in_the_order() -> None:
    for path in sources():
        if module_of(path)[0] == "planner":
            place(path.relative_to(ROOT).as_posix())


def test_planner_modules_import_only_lower_layers_and_their_own_family() -> None:
    wrong = []
    for found in INSIDE:
        if found.path.startswith("planner/") and found.target.startswith("planner/"):
            mine, other = place(found.path), place(found.target)
            if not (other[0] < mine[0] or other == mine):
                wrong.append(str(found))
    assert wrong == []


@pytest.mark.parametrize(("importer", "forbidden"), [("planner", "adapters"), ("planner", "cli"), ("adapters", "cli")])
def test_lower_folders_never_import_upper_ones(importer: str, forbidden: str) -> None:
    assert [str(i) for i in INSIDE if i.path.startswith(f"{importer}/") and i.target.startswith(f"{forbidden}/")] == []


def test_there_are_no_import_cycles_even_for_types() -> None:
    graph = networkx.DiGraph()
    graph.add_edges_from((i.path.removesuffix(".py"), i.target) for i in INSIDE)
    cycles = [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    assert cycles == []


def test_nobody_imports_a_folder_by_its_bare_name() -> None:
    """From the repository root ``import planner`` works and makes a second, unequal copy of every class."""
    everywhere = [*sources(), *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "models").rglob("*.py"))]
    bare = []
    for path in everywhere:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            bare += [f"{path.name}:{node.lineno}" for name in names if name.split(".")[0] in FOLDERS]
    assert bare == []


def test_inside_imports_are_relative_within_a_folder() -> None:
    absolute = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                parts = node.module.split(".")
                if parts[0] == "ogc_plan" and parts[1:2] == [module_of(path)[0]]:
                    absolute.append(f"{path.name}:{node.lineno}")
    assert absolute == []


def test_errors_imports_nothing() -> None:
    assert [str(i) for i in ALL_IMPORTS if i.path == "planner/errors.py"] == []


def test_the_schedule_knows_no_strategy() -> None:
    assert reached_from("planner/schedule") & {m for m in modules() if m.startswith("planner/strategies")} == set()


def test_the_replay_shares_nothing_with_what_it_judges() -> None:
    """simulate knows the types of steps, and neither strategies nor the problem nor how steps were made."""
    tree = ast.parse((ROOT / "planner/simulate.py").read_text(encoding="utf-8"))
    taken = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert "lower" not in taken
    mine = {i.target for i in INSIDE if i.path == "planner/simulate.py"}
    assert mine == {"planner/errors", "planner/schedule", "planner/training"}


def test_strategies_never_import_what_judges_them() -> None:
    judges = {"planner/simulate", "planner/schedule", "planner/plan", "planner/pipeline"}
    assert [str(i) for i in INSIDE if i.path.startswith("planner/strategies/") and i.target in judges] == []


@pytest.mark.parametrize("package", sorted(DOORS))
def test_heavy_packages_enter_at_their_one_door(package: str) -> None:
    def at_door(path: str) -> bool:
        return any(path == door or (door.endswith("/") and path.startswith(door)) for door in DOORS[package])

    found = [i for i in ALL_IMPORTS if i.target.split(".")[0] == package and "/" not in i.target]
    assert [str(i) for i in found if not i.type_checking and not at_door(i.path)] == []


def modules() -> set[str]:
    return {path.relative_to(ROOT).with_suffix("").as_posix() for path in sources()}


def reached_from(module: str) -> set[str]:
    """Everything a module imports, directly or not."""
    reached, waiting = set[str](), [module]
    while waiting:
        current = waiting.pop()
        for found in INSIDE:
            if found.path == f"{current}.py" and found.target not in reached:
                reached.add(found.target)
                waiting.append(found.target)
    return reached


def loaded_by(code: str) -> set[str]:
    """Top-level packages in sys.modules after ``code`` ran in a fresh interpreter."""
    script = f"import sys\n{code}\nprint('\\n' + ' '.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import ogc_plan.planner",
        "import ogc_plan.cli.main",
        "import ogc_plan.cli.main as cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass",
        "import ogc_plan.planner.strategies",
        "import ogc_plan.planner.training, ogc_plan.planner.schedule, ogc_plan.planner.simulate",
    ],
    ids=["planner", "command line", "--help", "registry", "replay"],
)
def test_starting_loads_no_heavy_package(code: str) -> None:
    assert loaded_by(code) & set(HEAVY) == set()


def test_the_console_script_prints_its_help_without_heavy_packages() -> None:
    """The installed command itself, not only its module."""
    script = Path(sys.executable).parent / "ogc-plan"
    command = [sys.executable, "-X", "importtime", str(script), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert imported & set(HEAVY) == set()
