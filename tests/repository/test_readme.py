"""The pages say what the results files and the repository say, and their examples run as written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from ogc_plan.adapters.onnx_step.losses import Loss
from ogc_plan.adapters.onnx_step.step_file import step_file
from ogc_plan.planner import load_model, plan, write_plan
from ogc_plan.planner.autodiff.rule_table import RULES
from ogc_plan.planner.autodiff.rules.op_call import RuleCall
from ogc_plan.planner.costs.devices import read_device
from ogc_plan.planner.graph import Op, Tensor
from ogc_plan.planner.schedule import StepKind
from ogc_plan.planner.strategies import STRATEGIES
from ogc_plan.planner.strategies.optimal.effort import EFFORTS

from models.ablation.graphs import GRAPHS, NEW
from models.light import light_path
from models.readme.__main__ import PAGES, RESULTS, ROOT, example, examples, filled, from_results
from models.readme.console import story, unsearched
from models.readme.retention_picture import COLOURS, draw, plan_of_chain
from tests.files.onnx_files import write_perceptron

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
README, PLANNER, MODELS = (TEXTS[page] for page in ("README.md", "planner/README.md", "models/README.md"))
MADE = from_results()


def test_the_readme_has_at_most_200_lines_and_16_kb() -> None:
    assert README.count("\n") <= 200
    assert len(README.encode()) <= 16_000


@pytest.mark.parametrize("page", PAGES)
def test_every_table_is_the_one_made_from_the_committed_results(page: str) -> None:
    assert filled(page, MADE) == TEXTS[page]


@pytest.mark.parametrize("page", ["README.md", "cli/README.md"])
def test_every_output_that_no_search_decides_is_what_the_command_prints(page: str, folder: Path) -> None:
    assert filled(page, unsearched(folder)) == TEXTS[page]


def test_the_four_commands_print_what_the_readme_shows(folder: Path) -> None:
    shutil.copy(light_path("squeezenet"), folder)
    shown = README.partition("<!-- story -->\n")[2].partition("\n<!-- /story -->")[0]
    wording = [re.sub(r"[+-]?\d[\d,.]* ?[mu]?[s%]?", "N", re.sub(" +", " ", text)) for text in (shown, story(folder))]
    assert wording[0].splitlines() == wording[1].splitlines()
    assert (folder / "plan.html").stat().st_size > 10_000


def test_ci_runs_the_readmes_test_command_word_for_word() -> None:
    command = next(line for line in README.splitlines() if "-m pytest" in line and line.startswith("python3 -m venv"))
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: str) -> list[str]:
    """The links of a page that lead to no file, or to no heading of a page."""
    found = []
    for link in re.findall(r"\]\(([^)]+)\)", TEXTS[page]):
        name, _, anchor = link.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    assert broken(page) == []


def test_every_page_is_linked_from_the_readme() -> None:
    assert [page for page in PAGES if page != "README.md" and f"]({page})" not in README] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_for_a_figure_is_a_module_here(page: str) -> None:
    files = [ROOT / name.replace(".", "/") for name in set(re.findall(r"python -m (models[\w.]*\w)", TEXTS[page]))]
    assert [p for p in files if not (p.with_suffix(".py").exists() or (p / "__main__.py").exists())] == []


def test_every_results_file_stands_beside_its_command() -> None:
    assert [path.name for path in RESULTS.glob("*.json") if f"-o models/results/{path.name}" not in MODELS] == []


def test_the_graphs_of_the_plan_benchmark_are_counted_and_none_has_a_better_plan() -> None:
    count = len(json.loads((RESULTS / "plans.json").read_text())["networks"])
    assert f"On {count} graphs no other strategy has a better plan" in README
    assert "it has a better one in: none." in MADE["benchmark"]()


def test_the_page_says_which_graphs_the_table_of_the_ablation_covers() -> None:
    section = json.loads((RESULTS / "ablation.json").read_text())["commit cfd1e09"]
    covered, new = set(section["graphs"]), sum(graph["new"] for graph in section["graphs"].values())
    table = MODELS.partition("<!-- ablation -->")[2].partition("<!-- /ablation -->")[0]
    rows = [len(section["cells"][name]) for name, piece in section["pieces"].items() if f"| {piece['about']} " in table]
    known = f"{len(GRAPHS)} graphs: the {len(GRAPHS) - len(NEW)} of the benchmark and {len(NEW)} new ones"
    shown = f"{len(covered)} of them: {len(covered) - new} of the benchmark and {new} new ones"
    row = f"{min(rows)} to {max(rows)} of the {len(covered)}"
    assert f"It knows {known}. The table covers {shown}. Each row covers {row}." in " ".join(MODELS.split())


def run(program: str) -> str:
    """What a fresh Python prints when it runs ``program`` in the present folder."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_python_example_is_run_below() -> None:
    assert len(examples()) == 11


def test_the_example_without_pytorch_runs_as_written(folder: Path) -> None:
    shutil.copy(light_path("squeezenet"), folder / "model.onnx")
    run(example("load_model"))
    assert (folder / "plan.json").exists()


def test_the_example_of_an_arena_runs_as_written(folder: Path) -> None:
    write_plan(plan(load_model(light_path("squeezenet")), "80%", effort="fast"), folder / "plan.json")
    lines = run(example("import step_arena")).splitlines()
    placed = [int(line.split()[0]) for line in lines[:-1]]
    assert placed
    assert max(placed) < int(lines[-1].split()[0])


def test_the_tutorial_runs_as_written() -> None:
    shown = README.partition("<!-- trained -->\n```text\n")[2].partition("```")[0]
    wording = [re.split(r"[\d,.]+", printed) for printed in (run(example("AdamW")), shown)]
    assert wording[0] == wording[1]


def test_the_lines_on_top_run_as_written() -> None:
    ready = "import torch\nx = y = torch.ones(2, 2)\nmodel = torch.nn.Bilinear(2, 2, 2)\n"
    assert run(ready + example('"3GB")  # same class')) == ""


def test_the_example_of_the_largest_batch_runs_as_written() -> None:
    ready = "import torch\nfrom ogc_plan.adapters.pytorch import within_budget\n"
    ready += "model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()), torch.ones(2, 8)\n"
    shown = example("import fit").replace("24GB", "20kB").replace('"adamw"', '"adamw", device="a100"')
    assert run(ready + shown).startswith("batch within 20.00 KB: ")


def test_the_example_through_a_file_runs_as_written() -> None:
    words = ["model.onnx", "--budget", "3GB", "-q", "-o", "plan.json"]
    made = f"from ogc_plan.cli.main import main\nassert main({words}) == 0"
    exported, bound = example("import bind, export").split("model = bind")
    ready = "import torch\nmodel, x = torch.nn.Linear(4, 4), torch.randn(2, 4)\n"
    run(f"{ready}{exported}\n{made}\nmodel = bind{bound}\nmodel(x).sum().backward()")


def test_the_lines_of_a_compiled_budget_run_as_written() -> None:
    run(
        f"import torch\nmodel = torch.nn.Linear(4, 4)\n{example('options=options')}\n"
        "model(torch.ones(2, 4)).sum().backward()"
    )


def test_the_example_from_an_onnx_file_runs_as_written(folder: Path) -> None:
    shutil.copy(light_path("squeezenet"), folder / "model.onnx")
    ready = "import torch\nx = torch.rand(4, 3, 224, 224)\n"
    run(ready + example("to_onnx, within_budget"))
    assert (folder / "trained.onnx").exists()


def test_the_example_of_a_trainer_runs_as_written(folder: Path) -> None:
    path = write_perceptron(folder / "model.onnx")
    model = load_model(path, batch=4)
    loss = Loss("cross_entropy")
    (folder / "step.onnx").write_bytes(step_file(plan(model, "100%", effort="fast"), model, str(path), loss).content)
    assert run(example("import SGD, Trainer")).splitlines()[2].startswith("3 ")


def test_the_strategy_that_is_added_plans_within_its_budget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (name, home) = re.findall(r'`"(\w+)": "([\w.]+)",`', PLANNER)[0]
    path = folder / "strategy.py"
    path.write_text(example("def solve("), encoding="utf-8")
    spec = spec_from_file_location(f"ogc_plan.planner.strategies.{home}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setitem(STRATEGIES, name, home)
    made = plan(load_model(light_path("squeezenet")), "80%", strategy=name)
    assert made.recomputed
    assert made.peak.activation_nbytes <= made.budget.nbytes


@pytest.mark.parametrize("needs", [{0}, {1}, {0, 1}])
def test_the_rule_that_is_added_is_the_one_of_its_op(needs: set[int]) -> None:
    added: dict[str, object] = {}
    exec(example("def divide("), added)
    call = RuleCall(Op.__new__(Op), (Tensor.__new__(Tensor),) * 2, (Tensor.__new__(Tensor),), frozenset(needs))
    divide = added["divide"]
    assert callable(divide)
    assert divide(call) == RULES["Div"](call)


def test_the_device_that_is_added_is_read(folder: Path) -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PLANNER, re.DOTALL)
    (folder / "device.json").write_text(text, encoding="utf-8")
    assert read_device(folder / "device.json").name == "mine"


def test_every_strategy_is_explained() -> None:
    section = PLANNER.partition("## Other strategies")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)) == set(STRATEGIES)


def test_the_glossary_has_20_terms_in_order() -> None:
    section = PLANNER.partition("## Glossary")[2].partition("\n## ")[0]
    terms = re.findall(r"^\| ([a-z][\w -]*) \|", section, re.MULTILINE)[1:]
    assert len(terms) == 20
    assert terms == sorted(terms)


def test_the_keys_of_the_plan_file_are_explained() -> None:
    section = PLANNER.partition("## The plan file")[2].partition("\n## ")[0]
    schema = json.loads((ROOT / "planner" / "plan_file" / "plan.v2.schema.json").read_text())
    assert set(schema["required"]) <= set(re.findall(r"`(\w+)`", section))


def test_the_keys_of_an_arena_are_explained() -> None:
    section = PLANNER.partition("## A static arena for other runtimes")[2].partition("\n## ")[0]
    schema = json.loads((ROOT / "planner" / "arena" / "arena.schema.json").read_text())
    keys = {*schema["required"], *schema["properties"]["lives"]["items"]["required"]}
    assert keys <= set(re.findall(r"`(\w+)`", section))


def test_the_picture_marks_every_recomputation_in_its_row_and_at_what_it_writes(folder: Path) -> None:
    made = plan_of_chain(folder)
    legend = 1
    marks = sum(made.recomputed.get(op.name, 0) * (1 + len(op.writes)) for op in made.graph.ops)
    assert draw(made).count(COLOURS[StepKind.RECOMPUTE]) == legend + marks


def test_the_gap_at_which_a_search_ends_is_the_one_of_its_effort() -> None:
    (share,) = {EFFORTS[name].bound.accepted_gap for name in ("fast", "default")}
    assert f"within {100 * share:g}% of a step of the best" in " ".join(PLANNER.split())
