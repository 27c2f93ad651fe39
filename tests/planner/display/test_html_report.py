"""The report as a page: its figures are those of the plan, it needs nothing else, and names in it stay names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ogc_plan.planner import from_annotation, frontier, load_model, plan, report
from ogc_plan.planner.display.html.chart import MOST_BINS, MemoryChart
from ogc_plan.planner.display.html.frontier_chart import knee
from ogc_plan.planner.display.html.frontier_picture import frontier_svg
from ogc_plan.planner.display.html.memory_stack import StepMemory
from ogc_plan.planner.display.html.tables import MOST_GROUPS, alive_at_peak, grouped
from ogc_plan.planner.errors import PlanMismatchError
from ogc_plan.planner.model import store_all_timeline
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.schedule import StepKind
from ogc_plan.planner.simulate import Timeline
from ogc_plan.planner.units import format_nbytes, format_ns, percent

from tests.files.annotated_files import residual_network
from tests.files.onnx_files import write_perceptron
from tests.files.onnx_models import model, node, save

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u2028\x1b[31m\ud800"
SCRIPT = Path(__file__).parents[2] / "files" / "page_dom.js"


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_perceptron(tmp_path_factory.mktemp("report") / "perceptron.onnx")


@pytest.fixture(scope="module")
def made(perceptron: Path) -> Plan:
    """From a file with modules, within a budget on the total."""
    return plan(load_model(perceptron, batch=4096, optimizer="adamw"), "70%", scope="total", strategy="greedy")


@pytest.fixture(scope="module")
def annotated() -> Plan:
    """With sums, a random op that is recomputed and a gradient of two contributions, within a budget on activations."""
    return plan(from_annotation(residual_network(), name="residual.onnx", opset=18), "min")


@pytest.fixture(params=["made", "annotated", "accumulating"])
def any_plan(request: pytest.FixtureRequest, perceptron: Path) -> Plan:
    if request.param != "accumulating":
        return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
    return plan(load_model(perceptron, batch=512, grad_accumulation=True), "60%", strategy="greedy")


def long_plan(folder: Path) -> Plan:
    """10,000 ops with long names and paths, most of them recomputed."""
    name = "transformer/encoder/layers.{}/attention/self/query_key_value_projection/{}"
    layers = [
        layer
        for k in range(5_000)
        for layer in (
            node("Mul", f"{name.format(k, 'in')} w", name.format(k, "scaled")),
            node("Relu", name.format(k, "scaled"), name.format(k + 1, "in")),
        )
    ]
    path = save(model(layers, {name.format(0, "in"): (8, 64)}, name.format(5_000, "in"), weights={"w": (64,)}), folder)
    made = plan(load_model(path), "100%", strategy="sqrt")
    return replace(made, modules=tuple((s.name, s.name.rpartition("/")[0]) for s in made.graph.storages))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return long_plan(tmp_path_factory.mktemp("large"))


def poisoned(made: Plan) -> Plan:
    """The plan with hostile text wherever a plan file has free text."""
    graph = made.graph

    def bad(name: str) -> str:
        return f"{name} {HOSTILE}"

    return replace(
        made,
        model=replace(made.model, file=bad("file"), producer=HOSTILE, assumed=(HOSTILE,)),
        graph=replace(
            graph,
            ops=tuple(replace(op, name=bad(op.name), op_type=bad(op.op_type)) for op in graph.ops),
            storages=tuple(replace(s, name=bad(s.name)) for s in graph.storages),
            gradients=tuple(replace(g, name=bad(g.name)) for g in graph.gradients),
            aliases=tuple(tuple(map(bad, names)) for names in graph.aliases),
        ),
        modules=tuple((bad(name), bad(path)) for name, path in made.modules),
        time=replace(made.time, source=HOSTILE),
        certificate=replace(made.certificate, strategy=HOSTILE, bound_class=HOSTILE, solver=HOSTILE, notes=(HOSTILE,)),
        budget=replace(made.budget, optimizer=f"adamw:{HOSTILE}"),
    )


class Tags(HTMLParser):
    """Counts the elements of a page, and keeps its attributes and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text = Counter[str](), Counter[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def series(timeline: Timeline, scope: Scope) -> tuple[int, ...]:
    return timeline.total_nbytes if scope is Scope.TOTAL else timeline.activation_nbytes


@pytest.mark.parametrize("scope", Scope)
def test_the_kinds_of_each_step_add_up_to_its_replay(any_plan: Plan, scope: Scope) -> None:
    stack = StepMemory(any_plan.graph, any_plan.costs, any_plan.schedule).stack(scope)
    counted = series(any_plan.timeline, scope)
    assert [sum(held) for held in stack.nbytes] == [counted[step] for step in stack.steps]


def test_every_step_that_computes_is_shown(any_plan: Plan) -> None:
    stack = StepMemory(any_plan.graph, any_plan.costs, any_plan.schedule).stack(Scope.TOTAL)
    assert len(stack.steps) == sum(step.kind is not StepKind.FREE for step in any_plan.schedule)


@pytest.mark.parametrize("scope", Scope)
def test_no_step_that_frees_holds_more_than_those_that_are_shown(any_plan: Plan, scope: Scope) -> None:
    stack = StepMemory(any_plan.graph, any_plan.costs, any_plan.schedule).stack(scope)
    assert stack.peak_nbytes == max(series(any_plan.timeline, scope))


@pytest.mark.parametrize("scope", Scope)
def test_the_rows_at_the_peak_add_up_to_it(any_plan: Plan, scope: Scope) -> None:
    memory = StepMemory(any_plan.graph, any_plan.costs, any_plan.schedule)
    assert sum(entry.nbytes for entry in alive_at_peak(any_plan, memory, scope)) == max(
        series(any_plan.timeline, scope)
    )


def test_the_groups_take_the_plans_recomputation_time(any_plan: Plan) -> None:
    assert sum(group.recompute_ns for group in grouped(any_plan)[1].values()) == any_plan.time.recompute_ns


def test_the_groups_keep_what_the_plan_keeps(any_plan: Plan) -> None:
    sizes = {storage.name: storage.nbytes for storage in any_plan.graph.storages}
    assert sum(group.kept_nbytes for group in grouped(any_plan)[1].values()) == sum(sizes[n] for n in any_plan.kept)


def test_a_group_that_keeps_and_recomputes_nothing_is_left_out(annotated: Plan) -> None:
    assert [name for name, g in grouped(annotated)[1].items() if not g.kept_nbytes and not g.runs] == []


def test_many_modules_are_grouped_by_the_start_of_their_paths(large: Plan) -> None:
    assert grouped(large)[0] == "module (the first 3 parts of its path)"
    assert len(grouped(large)[1]) <= MOST_GROUPS


def test_a_chart_of_many_steps_has_few_columns_and_the_same_peak(large: Plan) -> None:
    chart = MemoryChart(StepMemory(large.graph, large.costs, large.schedule), Scope.ACTIVATIONS)
    assert len(chart.at) == MOST_BINS < len(chart.stack.steps)
    assert max(sum(chart.stack.nbytes[at]) for at in chart.at) == large.peak.activation_nbytes


def test_the_page_of_ten_thousand_ops_has_all_of_them(large: Plan) -> None:
    page = report(large)
    assert (len(page.encode()) < 3_000_000, '"left_out":0' in page) == (True, True)


def test_with_long_names_too_the_page_has_less_than_three_megabytes(large: Plan) -> None:
    graph = large.graph

    def wordy(name: str) -> str:
        return f"{name}/{'long' * 40}"

    renamed = replace(
        graph,
        ops=tuple(replace(op, name=f"{'op' * 20}{op.name}{'op' * 20}") for op in graph.ops),
        storages=tuple(replace(s, name=wordy(s.name)) for s in graph.storages),
        aliases=(),
    )
    modules = tuple((wordy(name), f"{name}/module/of/its/own") for name, _ in large.modules)
    page = report(replace(large, graph=renamed, modules=modules))
    assert (len(page.encode()) < 3_000_000, '"left_out":0' in page) == (True, False)


def test_the_headline_has_the_plans_figures(any_plan: Plan) -> None:
    total = any_plan.budget.scope == "total"
    peak = any_plan.peak.total_nbytes if total else any_plan.peak.activation_nbytes
    shown = re.findall(r"<strong>(.*?)</strong>", report(any_plan))
    assert (shown[0], shown[1], shown[3]) == (
        format_nbytes(any_plan.budget.nbytes), format_nbytes(peak), f"+{percent(any_plan.time.overhead)}"
    )  # fmt: skip


def test_the_page_has_the_store_all_peak_and_the_recomputation_time(made: Plan) -> None:
    text = Tags(report(made)).text
    store_all = store_all_timeline(made.graph, made.costs)[1]
    assert f"{format_ns(made.time.recompute_ns)} of recomputation" in text
    assert f"store-all: peak {format_nbytes(store_all.peak_total_nbytes)} at step" in text


def test_a_plan_that_does_not_keep_its_promise_has_no_report(made: Plan) -> None:
    with pytest.raises(PlanMismatchError):
        report(replace(made, peak=replace(made.peak, total_nbytes=1)))


def test_the_page_names_no_other_file_and_no_server(made: Plan) -> None:
    page = report(made)
    assert set(Tags(page).attributes) & {"src", "href", "action", "data", "poster"} == set()
    assert re.findall(r"https?:|//[a-z]|url\(|@import|\bfetch\b|XMLHttpRequest", page) == []


def test_the_pages_policy_allows_its_own_script_alone(made: Plan) -> None:
    page = report(made)
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


@pytest.mark.parametrize("name", ["made", "annotated"])
def test_hostile_names_make_no_elements_and_no_attributes(request: pytest.FixtureRequest, name: str) -> None:
    made = request.getfixturevalue(name)
    clean, hostile = Tags(report(made)), Tags(report(_checked_as_bare(poisoned(made))))
    assert set(hostile.tags) == set(clean.tags)
    assert hostile.tags["script"] == clean.tags["script"] == 2
    assert set(hostile.attributes) == set(clean.attributes)


def _checked_as_bare(made: Plan) -> Plan:
    """Without annotations, whose fingerprint covers names."""
    return replace(made, model=replace(made.model, annotations=None))


def test_hostile_names_are_shown_as_they_are(made: Plan) -> None:
    page = report(poisoned(made))
    assert "<title>file &lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert "\\u003c/script\\u003e\\u003cscript\\u003ealert(1)" in page


def test_a_page_with_hostile_names_can_be_written(made: Plan) -> None:
    assert report(poisoned(made)).encode("utf-8").isascii()


def test_a_notebook_shows_the_report_in_a_frame_of_its_own(made: Plan) -> None:
    frame = made._repr_html_()
    assert unescape(frame.partition('srcdoc="')[2].partition('"')[0]) == report(made)
    assert 'sandbox="allow-scripts"' in frame


@pytest.fixture(scope="module")
def plans(perceptron: Path) -> list[Plan]:
    answers = frontier(load_model(perceptron, batch=4096), ("90%", "70%", "55%", "40%"), strategy="greedy")
    return [answer for answer in answers if isinstance(answer, Plan)]


class TestFrontier:
    def test_every_plan_is_a_point_with_its_peak_and_its_overhead(self, plans: list[Plan]) -> None:
        page = report(plans[1], plans)
        titles = [
            f'title="{p.budget.text}: {format_nbytes(p.peak.activation_nbytes)}, +{percent(p.time.overhead)}"'
            for p in plans
        ]
        assert [title for title in titles if title not in page] == []

    def test_the_plan_that_is_shown_is_marked(self, plans: list[Plan]) -> None:
        assert re.findall(r'class="dot chosen"[^>]*title="(\d+%):', report(plans[1], plans)) == [plans[1].budget.text]

    def test_the_picture_has_a_point_for_every_plan_and_names_the_knee(self, plans: list[Plan]) -> None:
        words = [element.text for element in ElementTree.fromstring(frontier_svg(plans)).iter() if element.text]
        labels = [p.budget.text + (", the knee" if p is knee(plans) else "") for p in plans]
        assert [label for label in labels if label not in words] == []

    def test_the_picture_has_a_dash_for_every_bound(self, plans: list[Plan]) -> None:
        proven = [
            replace(p, certificate=replace(p.certificate, bound_class="any order", bound_ns=p.time.recompute_ns // 2))
            for p in plans
        ]
        drawn = [frontier_svg(answers).count('stroke="#64748b"') for answers in (plans, proven)]
        assert drawn == [0, 2 * len(plans)]

    def test_a_hostile_name_stays_text_in_the_picture(self, plans: list[Plan]) -> None:
        assert "</script><script>" in "".join(ElementTree.fromstring(frontier_svg([poisoned(plans[0])])).itertext())

    def test_a_plan_outside_of_the_frontier_joins_it(self, plans: list[Plan]) -> None:
        assert report(plans[0], plans[1:]).count('class="dot') == 1 + len(plans)

    @pytest.mark.parametrize(
        ("points", "best"), [([(9, 0), (5, 1), (1, 90)], 1), ([(9, 0), (5, 80), (1, 90)], 0), ([(9, 5)], 0)]
    )
    def test_the_knee_lies_farthest_below_the_line(self, made: Plan, points: list[tuple[int, int]], best: int) -> None:
        plans = [
            replace(made, peak=replace(made.peak, total_nbytes=peak), time=replace(made.time, recompute_ns=ns))
            for peak, ns in points
        ]
        assert knee(plans) is plans[best]


def under_node(page: str, words: str, folder: Path) -> dict[str, str]:
    """What the script of a page shows to a user who presses keys and searches for ``words``."""
    if shutil.which("node") is None:
        pytest.skip("no node")
    (folder / "page.html").write_text(page, encoding="utf-8")
    command = ["node", str(SCRIPT), str(folder / "page.html"), words]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def seen(made: Plan, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return under_node(report(made), "gemm0", tmp_path_factory.mktemp("page"))


class TestScript:
    def test_a_chart_begins_at_the_peak(self, seen: dict[str, str], made: Plan) -> None:
        assert seen["peak"].endswith(f", {format_nbytes(made.peak.total_nbytes)}")

    def test_the_arrow_keys_move_along_the_step(self, seen: dict[str, str]) -> None:
        steps = [seen[key].partition(" of ")[0] for key in ("home", "right", "left")]
        assert steps == ["step 1", "step 2", "step 1"]

    def test_end_goes_to_the_last_backward_and_p_to_the_peak(self, seen: dict[str, str]) -> None:
        assert ("backward of gemm0" in seen["end"], seen["p"]) == (True, seen["peak"])

    def test_pointing_shows_op_tensor_bytes_and_module(self, seen: dict[str, str]) -> None:
        size = format_nbytes(4096 * 32 * 4)
        assert "forward of gemm0 (Gemm)" in seen["pointed"]
        assert f"module layer0tensors made: g0 {size}" in seen["pointed"]

    def test_the_search_finds_ops_and_moves_the_chart(self, seen: dict[str, str]) -> None:
        assert seen["count"].startswith("1 of ")
        assert seen["hit"].startswith("gemm0op Gemm, layer0, step 1, ")
        assert "at step 1 of" in seen["found"]

    def test_hostile_names_stay_text(self, made: Plan, tmp_path: Path) -> None:
        assert "</script><script>alert(1)" in under_node(report(poisoned(made)), "gemm0", tmp_path)["hit"]

    def test_the_largest_page_is_searched(self, large: Plan, tmp_path: Path) -> None:
        assert under_node(report(large), "layers.4999/ relu", tmp_path)["count"].startswith("1 of 20,000")


def test_the_script_never_parses_text_as_html() -> None:
    script = Path(report.__code__.co_filename).with_name("page.js").read_text(encoding="utf-8")
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(", script) == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_a_browser_runs_the_script_under_the_pages_policy(made: Plan, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(report(made), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
    assert done.stdout.count('<div class="readout"><p><b>') == 4
