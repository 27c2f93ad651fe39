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

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("planner", "adapters", "cli")

# Low to high: a wing is a folder, or a file that stands in no wing. It imports itself and lower wings; those that share
# a line know nothing of each other. A folder that holds folders stands above them.
WINGS = """
planner/errors
planner/units planner/graph planner/json_input planner/limits
planner/training_graph
planner/annotations planner/dependencies
planner/onnx_import/document planner/autodiff/rules
planner/onnx_import/values
planner/onnx_import/shapes
planner/onnx_import/meaning
planner/onnx_import planner/peak_bounds planner/autodiff
planner/problem
planner/solution
planner/schedule
planner/simulate
planner/strategies planner/strategies/kernels
planner/strategies/evaluation
planner/strategies/relaxation planner/strategies/orders planner/strategies/labelling
planner/strategies/retention
planner/strategies/integers planner/strategies/chain
planner/strategies/baselines
planner/strategies/optimal
planner/solver
planner/infeasible
planner/plan_file
planner/arena
planner/device_overhead
planner/costs
planner/model
planner/pipeline
planner/trade_offs planner/replan planner/display
planner/__init__
adapters/__init__
adapters/pytorch/unbind adapters/pytorch/errors
adapters/pytorch/torch_private
adapters/pytorch/value_shapes
adapters/pytorch/guards/values
adapters/pytorch/memory adapters/pytorch/guards
adapters/pytorch/joint
adapters/pytorch/passes
adapters/pytorch/capture
adapters/pytorch/step adapters/pytorch/onnx_module
adapters/pytorch/execution
adapters/pytorch/binding adapters/inductor
adapters/pytorch/api
adapters/pytorch/beside_plain
adapters/pytorch/training_target
adapters/pytorch/__init__
adapters/torch_checkpoint
adapters/onnx_step/nodes
adapters/onnx_step/forward
adapters/onnx_step/gradients
adapters/onnx_step
adapters/onnxruntime
adapters/save_list
cli
"""
LEVEL = {wing: level for level, line in enumerate(WINGS.split("\n")) for wing in line.split()}
LARGEST_FOLDER = 18

# Third-party packages and the only files that may import them; a folder ends with a slash.
DOORS = {
    "ortools": (
        "planner/arena/exact.py",
        "planner/strategies/relaxation/linear_program.py",
        "planner/strategies/relaxation/max_flow.py",
        "planner/strategies/integers/cp_sat.py",
    ),
    "onnx": (
        "planner/onnx_import/document/protobuf.py",
        "planner/onnx_import/shapes/shape_inference.py",
        "planner/onnx_import/values/constant_folding.py",
    ),
    "numba": ("planner/strategies/kernels/jit.py",),
    "torch": ("adapters/pytorch/", "adapters/inductor/"),
    "onnxruntime": ("adapters/onnxruntime/",),
    "matplotlib": ("planner/display/html/frontier_png.py",),
}
HEAVY = ("torch", "ortools", "numba", "onnx", "onnxruntime", "scipy", "networkx", "matplotlib")


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


def wing(module: str) -> str:
    """The wing of a file given as a path, with or without suffix: the file itself, or the nearest folder, in WINGS."""
    name = module.removesuffix(".py")
    while name not in LEVEL:
        name, _, last = name.rpartition("/")
        assert last, f"{module} is in no wing: give it a place in WINGS"
    return name


def test_every_file_has_its_wing() -> None:
    assert all(wing(path.relative_to(ROOT).as_posix()) for path in sources())


def test_every_wing_exists() -> None:
    assert [name for name in LEVEL if not ((ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file())] == []


def test_a_wing_imports_only_itself_and_lower_wings() -> None:
    wrong = [
        str(found)
        for found in INSIDE
        if wing(found.path) != wing(found.target) and LEVEL[wing(found.target)] >= LEVEL[wing(found.path)]
    ]
    assert wrong == []


def test_there_are_no_cycles_between_wings() -> None:
    graph = networkx.DiGraph((wing(i.path), wing(i.target)) for i in INSIDE if wing(i.path) != wing(i.target))
    assert networkx.is_directed_acyclic_graph(graph)


@pytest.mark.parametrize("top", ["planner", "adapters", "cli", "models", "tests"])
def test_no_folder_holds_more_rooms_than_can_be_remembered(top: str) -> None:
    folders = {path.parent for path in (ROOT / top).rglob("*.py")}
    counts = {f.relative_to(ROOT).as_posix(): len([*f.glob("[!_]*.py")]) for f in folders}
    assert {folder: count for folder, count in counts.items() if count > LARGEST_FOLDER} == {}


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


def test_product_code_imports_itself_relatively() -> None:
    absolute = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "ogc_plan":
                absolute.append(f"{path.name}:{node.lineno}")
    assert absolute == []


def test_errors_imports_nothing_of_the_program_and_nothing_heavy() -> None:
    assert {i.target for i in ALL_IMPORTS if i.path == "planner/errors.py"} <= {"__future__", "re", "shlex"}


def test_the_schedule_knows_no_strategy() -> None:
    assert reached_from("planner/schedule") & {m for m in modules() if m.startswith("planner/strategies")} == set()


def test_the_replay_shares_nothing_with_what_it_judges() -> None:
    """simulate knows the types of steps, and neither strategies nor the problem nor how steps were made."""
    tree = ast.parse((ROOT / "planner/simulate.py").read_text(encoding="utf-8"))
    taken = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert "lower" not in taken
    mine = {i.target for i in INSIDE if i.path == "planner/simulate.py"}
    assert mine == {"planner/errors", "planner/schedule", "planner/training_graph"}


def test_strategies_never_import_what_judges_them() -> None:
    judges = {"planner/simulate", "planner/schedule", "planner/plan_file/record", "planner/pipeline"}
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
        "import ogc_plan\nogc_plan.__version__",
        "import ogc_plan.planner",
        "import ogc_plan.cli.main",
        "import ogc_plan.cli.main as cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass",
        "import ogc_plan.planner.strategies",
        "import ogc_plan.planner.training_graph, ogc_plan.planner.schedule, ogc_plan.planner.simulate",
    ],
    ids=["package", "planner", "command line", "--help", "registry", "replay"],
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
