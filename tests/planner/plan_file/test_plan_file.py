"""The plan file: round trip, schema, atomic writing, and what happens to damaged or foreign plans."""

from __future__ import annotations

import contextlib
import copy
import errno
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ogc_plan.planner.errors import PlanError, PlanFormatError, PlanMismatchError, PlanVersionError, StorageError
from ogc_plan.planner.model import Model, load_model
from ogc_plan.planner.pipeline import plan, verify
from ogc_plan.planner.plan_file import reader as plan_reader
from ogc_plan.planner.plan_file.reader import read_plan
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.plan_file.writer import dumps, to_json, write_plan

from tests.cli.calls import raising
from tests.files.mutations import mutations
from tests.files.onnx_files import write_perceptron
from tests.files.plan_schemas import SCHEMA_2, errors_of_schema


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = write_perceptron(tmp_path_factory.mktemp("model") / "perceptron.onnx")
    return load_model(path, dims={"batch": 4096}, frozen=["w0"], optimizer="adamw")


@pytest.fixture(scope="module")
def made(model: Model) -> Plan:
    return plan(model, "min", strategy="sqrt")


@pytest.fixture(scope="module")
def data(made: Plan) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(dumps(made))
    return parsed


def written(folder: Path, document: Any, name: str = "plan.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def changed(document: dict[str, Any], keys: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """A copy of ``document`` in which the entry at ``keys`` is ``value``."""
    result = copy.deepcopy(document)
    place: Any = result
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return result


class TestRoundTrip:
    def test_the_plan_recomputes_something_and_has_every_kind_of_step(self, made: Plan, data: dict[str, Any]) -> None:
        kinds = {"state" if name.endswith("#random_state") else kind for kind, name in data["schedule"]}
        wanted = {"forward", "recompute", "backward", "free", "state"}
        assert (kinds, bool(made.recomputed), bool(made.modules)) == (wanted, True, True)

    @pytest.mark.parametrize("name", ["plan.json", "plan.json.gz", "plan"])
    def test_what_is_written_is_read_back_equal(self, made: Plan, tmp_path: Path, name: str) -> None:
        write_plan(made, tmp_path / name)
        assert dumps(read_plan(tmp_path / name)) == dumps(made)

    def test_a_plan_read_back_passes_its_replay(self, made: Plan, model: Model, tmp_path: Path) -> None:
        write_plan(made, tmp_path / "plan.json")
        again = read_plan(tmp_path / "plan.json")
        assert verify(again) == verify(again, model) == made.timeline

    def test_the_same_job_gives_the_same_bytes(self, made: Plan, model: Model) -> None:
        assert dumps(plan(model, "min", strategy="sqrt")) == dumps(made)

    def test_two_packed_files_of_a_plan_are_the_same(self, made: Plan, tmp_path: Path) -> None:
        files = [tmp_path / "one.gz", tmp_path / "two.gz"]
        for file in files:
            write_plan(made, file)
        assert files[0].read_bytes() == files[1].read_bytes()

    def test_names_of_any_characters_survive(self, made: Plan, data: dict[str, Any], tmp_path: Path) -> None:
        strange = 'a"\\\n\x00 [bold] \u202e 漢 \ud800'
        text = json.dumps(data).replace(json.dumps(made.graph.ops[0].name), json.dumps(strange))
        read = read_plan(written(tmp_path, text))
        write_plan(read, tmp_path / "again.json")
        assert read_plan(tmp_path / "again.json").graph.ops[0].name == strange

    def test_no_folder_of_the_model_is_in_the_plan(self, made: Plan, model: Model) -> None:
        assert str(Path(model.path).parent) not in dumps(made)


class TestSchema:
    def test_the_schema_is_valid(self) -> None:
        jsonschema.Draft202012Validator.check_schema(SCHEMA_2)

    def test_a_plan_follows_the_schema(self, data: dict[str, Any]) -> None:
        assert errors_of_schema(data) == []

    def test_the_schema_names_every_key_that_is_written(self, made: Plan) -> None:
        assert list(SCHEMA_2["properties"]) == list(to_json(made))

    @pytest.mark.parametrize(
        ("keys", "value"),
        [
            (("version",), 3),
            (("budget", "scope"), "everything"),
            (("budget", "nbytes"), -1),
            (("schedule", 0), ["forward"]),
            (("schedule", 0, 0), "jump"),
            (("model", "sha256"), "abc"),
            (("ops", 0, "backward_activation_workspace_nbytes"), -1),
            (("ops", 3, "backward", "sums"), [["a", "b"]]),
            (("certificate", "status"), "unknown"),
        ],
    )
    def test_a_wrong_value_is_refused(self, data: dict[str, Any], keys: tuple[str | int, ...], value: Any) -> None:
        assert errors_of_schema(changed(data, keys, value))


class TestAtomicWriting:
    @pytest.fixture
    def old(self, tmp_path: Path) -> Path:
        return written(tmp_path, "old plan")

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    @pytest.mark.parametrize(
        ("error", "raised"),
        [(OSError(errno.ENOSPC, "No space left"), StorageError), (KeyboardInterrupt(), KeyboardInterrupt)],
    )
    def test_a_failure_leaves_the_old_plan_and_no_other_file(
        self, made: Plan, old: Path, call: str, error: BaseException, raised: type[BaseException]
    ) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, call, raising(error))
            with pytest.raises(raised):
                write_plan(made, old)
        assert (old.read_text(), [entry.name for entry in old.parent.iterdir()]) == ("old plan", [old.name])

    def test_the_permissions_of_an_old_plan_stay(self, made: Plan, old: Path) -> None:
        old.chmod(0o640)
        write_plan(made, old)
        assert old.stat().st_mode & 0o777 == 0o640

    def test_a_new_plan_follows_the_umask(self, made: Plan, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            write_plan(made, tmp_path / "new.json")
        finally:
            os.umask(before)
        assert (tmp_path / "new.json").stat().st_mode & 0o777 == 0o640

    def test_a_very_long_name_is_written(self, made: Plan, tmp_path: Path) -> None:
        path = tmp_path / ("p" * 250 + ".json")
        write_plan(made, path)
        assert read_plan(path).peak == made.peak


class TestUnreadableFiles:
    @pytest.mark.parametrize("name", ["nothing.json", "."])
    def test_a_path_that_is_no_file_is_a_storage_error(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(StorageError, match="cannot read plan"):
            read_plan(tmp_path / name)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (b"{", "not JSON"),
            (b'{"format": "ogc-plan", "version": NaN}', "NaN"),
            (b"[" * 100_000, "not JSON"),
            (b'{"version": ' + b"9" * 5000 + b"}", "not JSON"),
            (b'{"format": "other"}', "not an ogc-plan file"),
        ],
    )
    def test_something_else_is_a_format_error(self, tmp_path: Path, content: bytes, says: str) -> None:
        (tmp_path / "plan.json").write_bytes(content)
        with pytest.raises(PlanFormatError, match=says):
            read_plan(tmp_path / "plan.json")

    @pytest.mark.parametrize(
        "damage", [lambda b: b[:40], lambda b: b[:-9], lambda b: b"{}", lambda b: b[:30] + b"\0" * 40 + b[70:]]
    )
    def test_a_damaged_gzip_file_is_a_format_error(
        self, made: Plan, tmp_path: Path, damage: Callable[[bytes], bytes]
    ) -> None:
        path = tmp_path / "plan.json.gz"
        path.write_bytes(damage(gzip.compress(dumps(made).encode(), mtime=0)))
        with pytest.raises(PlanFormatError):
            read_plan(path)

    def test_a_file_beyond_the_limit_is_a_format_error(
        self, made: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_reader, "MAX_FILE_NBYTES", 1000)
        with pytest.raises(PlanFormatError, match="larger than 1000"):
            read_plan(written(tmp_path, dumps(made)))

    def test_a_file_that_unpacks_beyond_the_limit_is_a_format_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_reader, "MAX_FILE_NBYTES", 100_000)
        path = tmp_path / "bomb.json.gz"
        path.write_bytes(gzip.compress(b" " * 50_000_000))
        with pytest.raises(PlanFormatError, match="unpacks to more"):
            read_plan(path)


class TestFormatErrors:
    @pytest.mark.parametrize("version", [0, 3, "1", 1.0, True, None])
    def test_an_unknown_version_is_named(self, data: dict[str, Any], tmp_path: Path, version: Any) -> None:
        with pytest.raises(PlanVersionError, match=f"version {version!r}"):
            read_plan(written(tmp_path, {**data, "version": version}))

    SECTIONS = (
        "model", "budget", "peak", "time", "certificate", "stationary", "schedule", "timeline", "storages",
        "gradients", "outputs", "seeds", "ops", "modules", "keep", "recompute",
    )  # fmt: skip

    @pytest.mark.parametrize("key", SECTIONS)
    @pytest.mark.parametrize("missing", [True, False], ids=["missing", "of another type"])
    def test_a_section_is_named_that_is(self, data: dict[str, Any], tmp_path: Path, key: str, missing: bool) -> None:
        rest = {name: value for name, value in data.items() if name != key}
        with pytest.raises(PlanFormatError, match=key):
            read_plan(written(tmp_path, rest if missing else {**data, key: 7}))

    @pytest.mark.parametrize(
        ("keys", "value", "names"),
        [
            (("peak", "total_nbytes"), "1", "plan.peak.*total_nbytes"),
            (("surprise",), 1, "plan: key 'surprise' is unknown"),
            (("model", "extra"), 1, "plan.model: key 'extra' is unknown"),
            (("model", "sha256"), "no hash", "plan.model: key 'sha256' has the impossible value 'no hash'"),
            (
                ("ops", 0, "backward"),
                {"reads": [], "takes": [], "gives": [], "sums": [], "x": 1},
                r"ops\[0\].backward.*'x'",
            ),
            (("storages", 1, "more"), None, r"plan.storages\[1\]: key 'more' is unknown"),
            (("peak", "total_nbytes"), -1, "total_nbytes.*-1"),
            (("peak", "total_nbytes"), 2**63, "total_nbytes.*impossible"),
            (("time", "store_all_ns"), 1.5, "plan.time.*store_all_ns"),
            (("budget", "grad_accumulation"), 1, "plan.budget.*grad_accumulation"),
            (("budget", "scope"), "both", "scope"),
            (("certificate", "status"), "magic", "status"),
            (("model", "dims"), {"batch": "x"}, "plan.model.dims.*batch"),
            (("model", "inputs"), {"x": [1, -2]}, "plan.model.inputs.*x"),
            (("timeline", "total_nbytes"), [1, None], "plan.timeline.*total_nbytes"),
            (("storages", 2), [], r"plan\.storages\[2\]"),
            (("storages", 2, "nbytes"), None, r"plan\.storages\[2\].*nbytes"),
            (("gradients", 1, "parameter"), 0, r"plan\.gradients\[1\].*parameter"),
            (("ops", 3, "reads"), ["ghost"], "unknown storage 'ghost'"),
            (("ops", 3, "forward_ns"), "5", r"plan\.ops\[3\].*forward_ns"),
            (("ops", 3, "backward", "takes"), ["ghost"], "unknown gradient 'ghost'"),
            (("ops", 3, "backward", "gives"), [["a"]], r"plan\.ops\[3\]\.backward\.gives"),
            (("ops", 3, "backward", "sums"), [["a", [1]]], r"plan\.ops\[3\]\.backward\.sums"),
            (("ops", 3, "backward", "sums"), [["ghost", []]], "unknown gradient 'ghost'"),
            (("ops", 3, "forward_ns"), 2**60, "plan.ops: key 'forward_ns' adds up to"),
            (("storages", 2, "nbytes"), 2**60, "its sizes add up to"),
            (("model", "annotations"), {"framework": "torch"}, "plan.model.annotations.*device"),
            (("outputs",), ["ghost"], "plan.outputs.*'ghost'"),
            (("schedule", 4), ["forward"], "schedule step 4"),
            (("schedule", 4), ["jump", "x"], "schedule step 4.*'jump'"),
            (("schedule", 4), ["forward", "ghost"], "schedule step 4.*unknown op 'ghost'"),
            (("schedule", 4), ["free", "ghost"], "schedule step 4.*unknown storage 'ghost'"),
            (("modules",), {"x": 3}, "plan.modules.*x"),
        ],
    )
    def test_a_wrong_value_is_named(
        self, data: dict[str, Any], tmp_path: Path, keys: tuple[str | int, ...], value: Any, names: str
    ) -> None:
        with pytest.raises(PlanFormatError, match=names):
            read_plan(written(tmp_path, changed(data, keys, value)))

    @pytest.mark.parametrize("section", ["storages", "gradients", "ops"])
    def test_a_name_listed_twice_is_named(self, data: dict[str, Any], tmp_path: Path, section: str) -> None:
        name = data[section][0]["name"]
        with pytest.raises(PlanFormatError, match=f"{name}.* twice"):
            read_plan(written(tmp_path, changed(data, (section, 1, "name"), name)))

    def test_a_graph_that_reads_before_it_writes_is_named(self, data: dict[str, Any], tmp_path: Path) -> None:
        late = data["storages"][-1]["name"]
        with pytest.raises(PlanFormatError, match=data["ops"][0]["name"]):
            read_plan(written(tmp_path, changed(data, ("ops", 0, "reads"), [late])))

    def test_every_format_error_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(PlanFormatError) as caught:
            read_plan(written(tmp_path, "{}"))
        assert "ogc-plan" in caught.value.remedy

    @pytest.mark.parametrize("where", [{"bound_ns": 0, "strategy": "optimal"}, {"bound_ns": 1}], ids=str)
    def test_a_bound_needs_the_class_of_plans_it_holds_for(
        self, data: dict[str, Any], tmp_path: Path, where: dict[str, Any]
    ) -> None:
        certificate = {**data["certificate"], "bound_class": " ", "status": "feasible", **where}
        certificate["gap"] = (data["time"]["recompute_ns"] - certificate["bound_ns"]) / data["time"]["store_all_ns"]
        with pytest.raises(PlanFormatError, match="bound_class"):
            read_plan(written(tmp_path, {**data, "certificate": certificate}))


class TestMismatches:
    def replay(self, folder: Path, document: dict[str, Any]) -> None:
        verify(read_plan(written(folder, document)))

    def steps(self, data: dict[str, Any], kind: str) -> list[int]:
        return [i for i, step in enumerate(data["schedule"]) if step[0] == kind]

    @pytest.mark.parametrize(
        ("text", "says"),
        [("3GB", "is 3000000000 B"), ("100%", "is [0-9]+ B"), ("60 %%", "60 %%"), ("", "not a size"), ("0", "is zero")],
    )
    def test_a_budget_whose_text_contradicts_its_bytes(
        self, data: dict[str, Any], tmp_path: Path, text: str, says: str
    ) -> None:
        with pytest.raises(PlanMismatchError, match=says):
            self.replay(tmp_path, changed(data, ("budget", "text"), text))

    def test_another_model_is_refused_by_fingerprint(self, made: Plan, tmp_path: Path) -> None:
        other = load_model(write_perceptron(tmp_path / "other.onnx", layers=3), dims={"batch": 4096})
        with pytest.raises(PlanMismatchError, match=made.model.fingerprint[:12]):
            verify(made, other)

    @pytest.mark.parametrize("options", [{"dims": {"batch": 8}}, {"optimizer": None}, {"device": "t4"}], ids=str)
    def test_other_options_are_refused(self, made: Plan, model: Model, options: dict[str, Any]) -> None:
        usual: dict[str, Any] = {"dims": {"batch": 4096}, "frozen": ["w0"], "optimizer": "adamw"}
        with pytest.raises(PlanMismatchError):
            verify(made, load_model(model.path, **{**usual, **options}))

    @pytest.mark.parametrize(
        ("keys", "what"),
        [
            (("peak", "total_nbytes"), "total peak"),
            (("peak", "activation_nbytes"), "activation peak"),
            (("peak", "store_all_total_nbytes"), "store-all total peak"),
            (("peak", "store_all_activation_nbytes"), "store-all activation peak"),
            (("peak", "floor_total_nbytes"), "floor of the total"),
            (("peak", "floor_activation_nbytes"), "floor of the activations"),
            (("time", "recompute_ns"), "recomputation time"),
            (("time", "store_all_ns"), "step time"),
        ],
    )
    def test_a_promise_the_replay_does_not_keep_is_named(
        self, data: dict[str, Any], tmp_path: Path, keys: tuple[str, str], what: str
    ) -> None:
        forged = changed(data, keys, data[keys[0]][keys[1]] - 1)
        recompute_ns, store_all_ns = forged["time"]["recompute_ns"], forged["time"]["store_all_ns"]
        forged = changed(forged, ("time", "overhead"), recompute_ns / store_all_ns)
        gap = (recompute_ns - forged["certificate"]["bound_ns"]) / store_all_ns
        with pytest.raises(PlanMismatchError, match=what):
            self.replay(tmp_path, changed(forged, ("certificate", "gap"), gap))

    @pytest.mark.parametrize(
        ("keys", "value"),
        [
            (("certificate", "bound_ns"), 10**15),
            (("certificate", "status"), "optimal"),
            (("certificate", "gap"), -5),
            (("time", "overhead"), 0.9),
        ],
    )
    def test_a_proof_that_contradicts_the_plan_is_refused(
        self, data: dict[str, Any], tmp_path: Path, keys: tuple[str, str], value: object
    ) -> None:
        with pytest.raises(PlanFormatError, match=keys[1]):
            self.replay(tmp_path, changed(data, keys, value))

    @pytest.mark.parametrize("key", ["total_nbytes", "activation_nbytes", "after_nbytes"])
    def test_a_changed_timeline_names_the_step(self, data: dict[str, Any], tmp_path: Path, key: str) -> None:
        with pytest.raises(PlanMismatchError, match="at step 5"):
            self.replay(tmp_path, changed(data, ("timeline", key, 5), data["timeline"][key][5] + 1))

    def test_a_peak_above_the_budget_is_refused(self, data: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(PlanMismatchError, match="above its budget"):
            self.replay(tmp_path, changed(data, ("budget", "nbytes"), data["budget"]["nbytes"] - 1))

    @pytest.mark.parametrize("key", ["keep", "recompute"])
    def test_a_save_list_that_is_not_the_schedules_is_refused(
        self, data: dict[str, Any], tmp_path: Path, key: str
    ) -> None:
        with pytest.raises(PlanError, match=key):
            self.replay(tmp_path, {**data, key: type(data[key])()})

    def test_a_step_left_out_is_named(self, data: dict[str, Any], tmp_path: Path) -> None:
        at = self.steps(data, "recompute")[0]
        steps = data["schedule"][:at] + data["schedule"][at + 1 :]
        runs = {name: count for name, count in data["recompute"].items() if name != data["schedule"][at][1]}
        with pytest.raises(PlanMismatchError, match=r"step \d+"):
            self.replay(tmp_path, {**data, "schedule": steps, "recompute": runs})

    def test_freeing_twice_names_the_step(self, data: dict[str, Any], tmp_path: Path) -> None:
        at = self.steps(data, "free")[0]
        steps = data["schedule"][: at + 1] + data["schedule"][at:]
        with pytest.raises(PlanMismatchError, match=rf"step {at + 1} \(free"):
            self.replay(tmp_path, changed(data, ("schedule",), steps))

    def test_a_schedule_without_its_end_names_what_is_missing(self, data: dict[str, Any], tmp_path: Path) -> None:
        at = self.steps(data, "backward")[-1]
        with pytest.raises(PlanMismatchError, match=data["schedule"][at][1]):
            self.replay(tmp_path, changed(data, ("schedule",), data["schedule"][:at]))


class TestMutations:
    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(draw=st.data())
    def test_a_mutated_plan_is_verified_or_refused_and_never_crashes(
        self, data: dict[str, Any], tmp_path: Path, draw: st.DataObject
    ) -> None:
        mutated = draw.draw(mutations(data))
        path = written(tmp_path, mutated)
        try:
            verify(read_plan(path))
        except PlanError:
            return
        assert read_plan(path).peak.activation_nbytes <= 2**63

    @pytest.mark.parametrize("packed", [False, True], ids=["text", "gzip"])
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(draw=st.data())
    def test_a_mutated_file_is_verified_or_refused_and_never_crashes(
        self, made: Plan, tmp_path: Path, draw: st.DataObject, packed: bool
    ) -> None:
        content = dumps(made).encode()
        mutated = bytearray(gzip.compress(content, mtime=0) if packed else content)
        for _ in range(draw.draw(st.integers(1, 4))):
            mutated[draw.draw(st.integers(0, len(mutated) - 1))] = draw.draw(st.integers(0, 255))
        (tmp_path / "plan.json").write_bytes(mutated)
        with contextlib.suppress(PlanError):
            verify(read_plan(tmp_path / "plan.json"))
