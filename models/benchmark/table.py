"""The tables of the benchmark: ours against OGC as published and as run here, and memory."""

from __future__ import annotations

from typing import Any

from models.benchmark.count import as_published, for_the_count
from models.benchmark.measure import MATCHED_MEMORY, MATCHED_TIME, MINIMUM, STRATEGY, STRATEGY_MEMORY, STRATEGY_TIME
from models.benchmark.network import Place
from models.benchmark.published import MIB, published_at
from models.benchmark.rows import Row, cut, overhead, rows_of
from models.reporting.result_table import table

Results = dict[str, dict[str, Any]]


def _pair(row: Row, plain: Row) -> str:
    """Memory saved and time added: ``81% / 37%``."""
    return f"{cut(row, plain):.1%} / {overhead(row, plain):.1%}"


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
        said = f"the proven floor is {floor / whole:.1%} of plain; {said}"
    return f"{said}, published is {ogc_mib:,} of {plain_mib:,} MiB with workspace"


def against_published(results: Results) -> str:
    """Memory saved and time added, network by network: published, the strategy run here, ours at each of theirs."""
    header = ["network, input", "OGC published: cut / time", "ours at that cut: time", "ours at that time: cut",
              "ogc strategy here: cut / time", "ours at its memory: time", "ours at its time: cut",
              "ours, minimum: cut / time", "better in"]  # fmt: skip
    lines = []
    for name, entry in finished(results).items():
        rows, published = rows_of(entry), published_at(name, entry["input"])
        plain = rows["plain"]
        memory, theirs = rows.get(MATCHED_MEMORY), rows.get(STRATEGY_MEMORY)
        lines.append([
            f"{name} {entry['input']}",
            f"{1 - published.remaining:.1%} / {published.overhead:.1%}" if published else "-",
            f"{overhead(memory, plain):.1%}" if memory else "-",
            f"{cut(rows[MATCHED_TIME], plain):.1%}" if MATCHED_TIME in rows else "-",
            _pair(rows[STRATEGY], plain),
            f"{overhead(theirs, plain):.1%}" if theirs else "-",
            f"{cut(rows[STRATEGY_TIME], plain):.1%}",
            _pair(rows[MINIMUM], plain),
            "both" if verdict(name, entry)[0] else "see below",
        ])  # fmt: skip
    return table(header, lines)


def failures(results: Results) -> dict[str, str]:
    """The networks that failed, and why."""
    return {name: entry["error"] for name, entry in results.items() if "error" in entry}


def finished(results: Results) -> Results:
    """The networks that did not."""
    return {name: entry for name, entry in results.items() if "error" not in entry}


def _mib(row: Row | None, quantity: str = "activation_nbytes") -> str:
    return "-" if row is None or row.get(quantity) is None else f"{row[quantity] / MIB:,.0f}"


def in_mib(results: Results) -> str:
    """Memory in MiB, as published; plain and OGC's figures next to the measured ones."""
    header = ["network", "plain: published", "activations", "as published", "OGC: published",
              "ogc strategy: activations", "as published", "ours at its time: activations", "as published",
              "total: plain", "ours", "plan s"]  # fmt: skip
    lines = []
    for name, entry in finished(results).items():
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
    verdicts = {name: verdict(name, entry) for name, entry in finished(results).items()}
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
        f"Better in memory and in time than published and than the strategy in {better} of {len(verdicts)} networks, "
        "by activations.",
        "\n".join(f"- {name}: {why}." for name, (good, why) in verdicts.items() if not good),
        as_published(finished(results)),
        "Peaks in MiB (2^20 bytes). Activations: all that a step makes but finished parameter gradients, none of which "
        "is there before. As published: gradients there before the step, inputs made inside it, less what stands "
        "before and after; ours by the plan made for that count. Plan s: wall seconds of the slowest plan, beside "
        "whatever else the machine did.",
        in_mib(results),
        "\n".join(f"- {name} failed: {why}" for name, why in failures(results).items()),
    ]
    return "\n\n".join(part for part in parts if part)
