"""The tables of the benchmark: ours against OGC as published and as run here, memory, and what PyTorch offers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from models.benchmark.alternatives_table import alternatives, reason
from models.benchmark.count import as_published, for_the_count
from models.benchmark.measure import MATCHED_MEMORY, MATCHED_TIME, MINIMUM, STRATEGY, STRATEGY_MEMORY, STRATEGY_TIME
from models.benchmark.network import Place
from models.benchmark.published import MIB, published_at
from models.benchmark.rows import Row, cut, overhead, rows_of
from models.reporting.result_table import table

Results = dict[str, dict[str, Any]]

COLUMNS = (
    "method", "activation_nbytes", "total_nbytes", "protocol_nbytes", "allocated_nbytes", "reserved_nbytes", "seconds",
    "predicted_s", "calls_s", "overhead", "bound", "plan_nbytes", "plan_s", "gradient_difference", "error",
)  # fmt: skip


def csv_rows(results: Results) -> list[Row]:
    """One flat row for each network and method, what is not known left empty."""
    found = []
    for name, entry in results.items():
        for row in entry.get("rows", [{"error": entry.get("error")}]):
            cells = {column: row.get(column) for column in COLUMNS}
            published = published_at(name, entry.get("input"))
            known = {"published_mib": None, "published_s": None}
            if published is not None and row.get("method") == "plain":
                known = {"published_mib": published.plain_mib, "published_s": published.plain_s}
            elif published is not None and row.get("method") == STRATEGY:
                known = {"published_mib": published.ogc_mib, "published_s": published.ogc_s}
            cells["error"] = reason(row["error"]) if row.get("error") else None
            line = {"network": name, "input": entry.get("input"), "ops": entry.get("ops"), **cells, **known}
            found.append({key: "" if value is None else value for key, value in line.items()})
    return found


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def _pair(row: Row | None, plain: Row) -> str:
    """Memory saved and time added: ``81% / 37%``."""
    return "-" if row is None else f"{_percent(cut(row, plain), 1)} / {_percent(overhead(row, plain), 1)}"


def verdict(name: str, entry: dict[str, Any]) -> tuple[bool, str]:
    """Whether ours is better in memory and in time than what was published and than the strategy, or why not."""
    rows = rows_of(entry)
    plain, theirs = rows["plain"], rows[STRATEGY]
    faults, reasons = [], []
    published = published_at(name, entry["input"])
    if published is not None:
        at_memory, at_time = rows.get(MATCHED_MEMORY), rows[MATCHED_TIME]
        if at_memory is None or overhead(at_memory, plain) >= published.overhead:
            faults.append("time at the published cut")
        if cut(at_time, plain) <= 1 - published.remaining:
            faults.append("published cut")
            reasons.append(_beyond_floor(entry, plain, published.ogc_mib, published.plain_mib))
    at_memory, at_time = rows.get(STRATEGY_MEMORY), rows[STRATEGY_TIME]
    if at_memory is None or overhead(at_memory, plain) >= overhead(theirs, plain):
        faults.append("time at the strategy's memory")
    if at_time["activation_nbytes"] >= theirs["activation_nbytes"]:
        faults.append("the strategy's memory")
        if theirs["plan_nbytes"] <= entry["floor_nbytes"]:
            reasons.append("the strategy is at the proven floor, too, which nothing goes below")
    if not faults:
        return True, "both"
    return False, f"not {', '.join(faults)}: {'; '.join(dict.fromkeys(reasons)) or 'see the table'}"


def _beyond_floor(entry: dict[str, Any], plain: Row, ogc_mib: int, plain_mib: int) -> str:
    floor, whole = entry["floor_nbytes"], plain["activation_nbytes"]
    smallest = rows_of(entry)[MINIMUM]
    said = f"ours goes down to {smallest['activation_nbytes'] / MIB:,.0f} of {whole / MIB:,.0f} MiB"
    if floor / whole >= ogc_mib / plain_mib * 0.999:
        said = f"the proven floor is {_percent(floor / whole, 1)} of plain; {said}"
    return f"{said}, published is {ogc_mib:,} of {plain_mib:,} MiB with workspace"


def against_published(results: Results) -> str:
    """Memory saved and time added, network by network: published, the strategy run here, ours at each of theirs."""
    header = ["network, input", "OGC published: cut / time", "ours at that cut: time", "ours at that time: cut",
              "ogc strategy here: cut / time", "ours at its memory: time", "ours at its time: cut",
              "ours, minimum: cut / time", "better in"]  # fmt: skip
    lines = []
    for name, entry in _finished(results):
        rows, published = rows_of(entry), published_at(name, entry["input"])
        plain = rows["plain"]
        memory, theirs = rows.get(MATCHED_MEMORY), rows.get(STRATEGY_MEMORY)
        lines.append([
            f"{name} {entry['input']}",
            f"{_percent(1 - published.remaining, 1)} / {_percent(published.overhead, 1)}" if published else "-",
            _percent(overhead(memory, plain), 1) if memory else "-",
            _percent(cut(rows[MATCHED_TIME], plain), 1) if MATCHED_TIME in rows else "-",
            _pair(rows[STRATEGY], plain),
            _percent(overhead(theirs, plain), 1) if theirs else "-",
            _percent(cut(rows[STRATEGY_TIME], plain), 1),
            _pair(rows[MINIMUM], plain),
            "both" if verdict(name, entry)[0] else "see below",
        ])  # fmt: skip
    return table(header, lines)


def failure(name: str, entry: dict[str, Any]) -> str | None:
    """Why a network has no line in the tables: its process failed, or a step that all others are compared with."""
    if "error" in entry:
        return str(entry["error"])
    needed = ["plain", STRATEGY, MINIMUM, STRATEGY_TIME]
    needed += [MATCHED_TIME] if published_at(name, entry["input"]) else []
    errors = {row["method"]: row.get("error") for row in entry["rows"]}
    lacking = [f"{method}: {errors.get(method, 'not run')}" for method in needed if errors.get(method, "not run")]
    return lacking[0] if lacking else None


def failures(results: Results) -> dict[str, str]:
    """The networks that failed, and why."""
    found = {name: failure(name, entry) for name, entry in results.items()}
    return {name: why for name, why in found.items() if why is not None}


def _finished(results: Results) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, entry) for name, entry in results.items() if failure(name, entry) is None)


def _mib(row: Row | None, quantity: str = "activation_nbytes") -> str:
    return "-" if row is None or row.get(quantity) is None else f"{row[quantity] / MIB:,.0f}"


def in_mib(results: Results) -> str:
    """Memory in MiB, as published; plain and OGC's figures next to the measured ones."""
    header = ["network", "plain: published", "activations", "as published", "OGC: published",
              "ogc strategy: activations", "as published", "ours at its time: activations", "as published",
              "total: plain", "ours", "plan s"]  # fmt: skip
    lines = []
    for name, entry in _finished(results):
        rows, published = rows_of(entry), published_at(name, entry["input"])
        plain, theirs, ours = rows["plain"], rows[STRATEGY], rows[STRATEGY_TIME]
        slowest = max(point["seconds"] for point in entry["points"])
        lines.append([
            f"{name}, {entry['ops']} ops", f"{published.plain_mib:,}" if published else "-", _mib(plain),
            _mib(plain, "protocol_nbytes"), f"{published.ogc_mib:,}" if published else "-", _mib(theirs),
            _mib(theirs, "protocol_nbytes"), _mib(ours), _mib(for_the_count(rows, STRATEGY_TIME), "protocol_nbytes"),
            _mib(plain, "total_nbytes"),
            _mib(ours, "total_nbytes"), f"{slowest:.1f}",
        ])  # fmt: skip
    return table(header, lines)


def page(results: Results, place: Place) -> str:
    """Everything, as Markdown."""
    finished = dict(_finished(results))
    verdicts = {name: verdict(name, entry) for name, entry in finished.items()}
    better = sum(good for good, _ in verdicts.values())
    parts = [
        f"Where: {place.described()}.",
        *(
            ["Memory is that of the tensors of the planned program; workspace inside kernels is not in it."]
            if place.fake
            else []
        ),
        "Cut: the share of plain training's activation peak that is saved. Time: what is added to a plain step.",
        against_published(results),
        f"Better in memory and in time than published and than the strategy in {better} of {len(finished)} networks, "
        "by activations.",
        "\n".join(f"- {name}: {why}." for name, (good, why) in verdicts.items() if not good),
        as_published(finished),
        "Peaks in MiB (2^20 bytes). Activations: all that a step makes but finished parameter gradients, none of which "
        "is there before. As published: gradients there before the step, inputs made inside it, less what stands "
        "before and after; ours by the plan made for that count. Plan s: wall seconds of the slowest plan, beside "
        "whatever else the machine did.",
        in_mib(results),
        alternatives(finished, predicted=place.fake),
        "\n".join(f"- {name} failed: {why}" for name, why in failures(results).items()),
    ]
    return "\n\n".join(part for part in parts if part)
