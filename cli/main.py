"""The command line. `ogc-plan MODEL --budget 3GB` is the default command; all others have names.

Heavy packages are imported inside the commands, so that ``--help`` is fast.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ..planner.display.interrupt import stoppable
from ..planner.display.terminal import activity, console
from ..planner.errors import PlanFormatError, UsageError
from .arena import arena
from .defaults import read_defaults
from .emit import emit
from .files import (
    STDIO,
    check_report,
    check_target,
    is_plan,
    print_bytes,
    readable,
    refuse_plan,
    shown,
    write_bytes_to,
    write_report,
    write_to,
)
from .fit import fit
from .measured.profile import profile
from .options import (
    ModelOptions,
    model_options,
    names_in,
    output_options,
    parse_duration,
    report_option,
    search_options,
)
from .terminal import report_failure, tolerate_any_text

if TYPE_CHECKING:
    from ..planner.model import Model

_SUMMARY = "Plan which tensors of a training step to keep and which to recompute, within a byte budget."
_EXAMPLES = """\
  ogc-plan model.onnx --budget 3GB -o plan.json  total peak of 3*10^9 bytes
  ogc-plan model.onnx --budget 60% --batch 64    60% of store-all's activations
  ogc-plan model.onnx --budget min               the smallest peak it can reach
"""
_EXIT_CODES = """\
  0 done            1 our defect         2 usage         3 invalid model
  4 unsupported     5 budget infeasible  6 out of time   7 bad plan or mismatch
  8 input, output, memory or a missing package
  130 interrupted: Ctrl-C; during a search the first one ends it with its plan
  141 standard output was closed before all was written
"""


def _takes_value(option: str) -> bool:
    """Whether the next word is the value of an option."""
    for command in (plan, *cli.commands.values()):
        for parameter in command.params:
            if isinstance(parameter, click.Option) and option in parameter.opts:
                return not parameter.is_flag and not parameter.count
    return False


def _first_file(words: Sequence[str]) -> int | None:
    """Position of the first word that is neither an option nor the value of one; None if ``--`` comes first."""
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            return None
        if word == STDIO or not word.startswith("-"):
            return position
        position += 2 if "=" not in word and _takes_value(word) else 1
    return None


class _Cli(click.Group):
    """A group with a default command, which runs if the first word that is not an option is no command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        at = _first_file(args)
        if at is not None and args[at] in self.commands:
            return args[at], self.commands[args[at]], [*args[:at], *args[at + 1 :]]
        if at == 0 and not ctx.resilient_parsing and args[at].isalpha() and not os.path.exists(args[at]):
            from difflib import get_close_matches

            near = get_close_matches(args[at], self.commands, n=1)
            if near or "--budget" not in args:
                raise UsageError(
                    f"{args[at]!r} is no file and no command",
                    remedy=f"did you mean {near[0]}?" if near else f"the commands are {', '.join(self.commands)}",
                )
        return "", plan, args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        known = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return [CompletionItem(incomplete, type="file"), *known]
        return [*known, *plan.shell_complete(click.Context(plan, help_option_names=[]), incomplete)]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("ogc-plan", "MODEL --budget SIZE [OPTIONS]")
        formatter.write_usage("ogc-plan", "COMMAND ...", prefix="       ")
        formatter.write_paragraph()
        formatter.write_text(_SUMMARY)
        formatter.write(f"\n{_EXAMPLES}")
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(70)) for name, command in self.commands.items()])
        with formatter.section("Options"):
            options = [parameter for parameter in plan.params if isinstance(parameter, click.Option)]
            records = [option.get_help_record(ctx) for option in options]
            formatter.write_dl([record for record in records if record] + [("--version", "Show the version.")])
        formatter.write(f"\nExit codes:\n{_EXIT_CODES}")


class _PlanCommand(click.Command):
    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        cli.format_help(ctx, formatter)


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"ogc-plan {version('ogc-plan')}")
        ctx.exit()


@click.group(
    cls=_Cli,
    help=_SUMMARY,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.help_option("-h", "--help")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
def cli() -> None:
    """The commands; the default one is `plan`."""


@click.command(cls=_PlanCommand, add_help_option=False)
@click.argument("model", metavar="MODEL")
@click.option("--budget", metavar="SIZE", help="3GB or 3GiB of total peak, 60% of the store-all activations, or min.")
@click.option("-o", "--output", metavar="PATH", help="Write the plan there; - for stdout, .gz to pack.")
@model_options()
@click.option(
    "--strategy",
    default="optimal",
    show_default=True,
    metavar="NAME",
    shell_complete=names_in("strategies", "STRATEGIES"),
    help="How to plan; compare names the others.",
)
@click.option("--headroom", default="0%", metavar="SIZE", help="Keep this much of the budget free: 5% or 200MB.")
@click.option("--keep", multiple=True, metavar="GLOB", help="Tensors to keep.")
@click.option("--recompute", multiple=True, metavar="GLOB", help="Tensors to recompute.")
@search_options("What the budget bounds; by default sizes the total, percentages the activations.")
@report_option()
@output_options()
def plan(model: str, **options: Any) -> None:
    """Plan one training step of MODEL within a budget."""
    shape = ModelOptions(options)
    budget, target, data = options["budget"], options["output"], options["format"] == "json"
    if budget is None:
        raise UsageError("no budget is given", remedy="pass --budget 3GB, --budget 60% or --budget min")
    search = _search(options)
    from ..planner.units import parse_budget, parse_headroom

    parse_budget(budget)
    parse_headroom(options["headroom"])
    if target is not None:
        check_target(target, model)
    check_report(options["report"], model, target)
    with activity(options["quiet"]) as spinner, readable(model) as path:
        spinner.now("starting")
        from ..planner import pipeline
        from ..planner.solver import CERTIFIED, Solver

        Solver(options["strategy"], options["effort"]).check()
        refuse_plan(path, model)
        spinner.now(f"reading {shown(model)}")
        ready = _within_limit(shape, path, model, search)
        spinner.now("planning")
        with stoppable() if options["strategy"] == CERTIFIED else nullcontext() as stop:
            made = pipeline.plan(
                ready,
                budget,
                **search,
                strategy=options["strategy"],
                headroom=options["headroom"],
                keep=options["keep"],
                recompute=options["recompute"],
                limits=spinner.limits(sum(cost.forward_ns + cost.backward_ns for cost in ready.costs), stop=stop),
            )
        if target is not None:
            spinner.now(f"writing {target}")
            write_to(made, target)
        write_report(options["report"], made)
    from ..planner.display.plan_report import print_plan
    from .report import summary, without_effect

    idle = without_effect(made, options["keep"], options["recompute"])
    if data and target != STDIO:
        _print_json({**summary(made, target), "without_effect": idle})
    if not options["quiet"]:
        people = sys.stderr if data or target == STDIO else sys.stdout
        place = {None: "nowhere: pass -o plan.json to keep the plan", STDIO: "to standard output"}
        written = place.get(target) or str(target)
        out, reference = console(people), (ready.store_all_replay, ready.floors)
        print_plan(out, made, *reference, verbose=options["verbose"], written=written, notes=idle)


@cli.command(add_help_option=False)
@click.argument("file", metavar="MODEL|PLAN")
@model_options()
@output_options()
def show(file: str, **options: Any) -> None:
    """What is in a model or a plan, and where the memory goes.

    Options from --dim to --strict are for a model.
    """
    shape = ModelOptions(options)
    with activity(options["quiet"]) as spinner, readable(file) as path:
        spinner.now(f"reading {shown(file)}")
        planned = is_plan(path)
        if planned and shape.given():
            raise UsageError(f"{', '.join(shape.given())} cannot change a plan", remedy="drop these options")
        if planned:
            from ..planner.pipeline import checked
            from ..planner.plan_file.reader import read_plan

            made = read_plan(path)
            found = checked(made.graph, made.costs, made)
        else:
            ready = shape.load(path, shown(file))
    from ..planner.display.plan_report import print_plan
    from . import report
    from .reports import model_report

    verbose, data = options["verbose"], options["format"] == "json"
    if planned and data:
        _print_json(report.summary(made, file))
    elif planned and not options["quiet"]:
        print_plan(console(sys.stdout), made, found.store_all, found.floors, verbose=verbose, written="")
    elif data:
        _print_json(model_report.describe(ready, everything=verbose))
    elif not options["quiet"]:
        model_report.print_model(console(sys.stdout), ready, verbose=verbose)


@cli.command(add_help_option=False)
@click.argument("model", metavar="MODEL")
@click.option("--budget", multiple=True, metavar="SIZE", help="Budgets to compare at; 80%, 60% and 40% by default.")
@model_options()
@search_options("What the budgets bound.")
@output_options()
def compare(model: str, **options: Any) -> None:
    """Every strategy on the same graph, replayed by one simulator.

    Ctrl-C keeps the rows that are finished.
    """
    shape = ModelOptions(options)
    search = _search(options)
    from ..planner.units import parse_budget

    for text in options["budget"]:
        parse_budget(text)
    with activity(options["quiet"]) as spinner, readable(model) as path:
        spinner.now("starting")
        from .compare import DEFAULT_BUDGETS, compare_strategies, print_rows, rows_as_data

        spinner.now(f"reading {shown(model)}")
        refuse_plan(path, model)
        ready = _within_limit(shape, path, model, search)
        result = compare_strategies(ready, options["budget"] or DEFAULT_BUDGETS, **search, spinner=spinner)
    if options["format"] == "json":
        _print_json(rows_as_data(result))
    elif not options["quiet"]:
        print_rows(console(sys.stdout), result)


@cli.command(add_help_option=False)
@click.argument("model", metavar="MODEL")
@click.option("--budgets", metavar="LIST", help="Sizes, or percentages, and min: 80%,60%,min.")
@click.option("-o", "--output", metavar="FOLDER", help="Write each plan there, plan-80%.json for 80%.")
@click.option("--plot", metavar="FILE", help="Draw peak against added time there, as .svg or .png.")
@model_options()
@click.option("--keep", multiple=True, metavar="GLOB", help="Tensors to keep.")
@click.option("--recompute", multiple=True, metavar="GLOB", help="Tensors to recompute.")
@search_options("What the budgets bound.")
@report_option()
@output_options()
def frontier(model: str, **options: Any) -> None:
    """Recomputation against memory: plans for several budgets at once.

    Under --effort default each budget after the first starts from the earlier plans and takes less work: plan the
    budget that you choose on its own for the best plan.
    """
    shape = ModelOptions(options)
    search = _search(options)
    with activity(options["quiet"]) as spinner, readable(model) as path:
        spinner.now("starting")
        from ..planner.display.html.frontier_chart import knee
        from ..planner.plan_file.record import Plan
        from ..planner.trade_offs.budget_frontier import frontier as plans_for
        from .frontier import DEFAULT_BUDGETS, Frontier, drawing_for, plan_files, split_budgets

        if options["output"] == STDIO:
            raise UsageError(
                "-o - is no folder, and frontier writes several plans", remedy="write for example -o plans"
            )
        budgets = split_budgets(DEFAULT_BUDGETS if options["budgets"] is None else options["budgets"])
        targets = [] if options["output"] is None else plan_files(options["output"], budgets)
        for target in targets:
            check_target(target, model)
        check_report(options["report"], model, *targets)
        picture = options["plot"]
        draw = None if picture is None else drawing_for(picture)
        check_report(picture, model, options["report"], *targets, option="--plot", usual="frontier.svg")
        refuse_plan(path, model)
        spinner.now(f"reading {shown(model)}")
        ready = _within_limit(shape, path, model, search)
        with stoppable() as stop:
            answers = plans_for(
                ready,
                budgets,
                **search,
                keep=options["keep"],
                recompute=options["recompute"],
                limits=spinner.limits(sum(cost.forward_ns + cost.backward_ns for cost in ready.costs), stop=stop),
            )
        for target, answer in zip(targets, answers, strict=False):  # no targets without -o
            if isinstance(answer, Plan):
                write_to(answer, target)
        plans = [answer for answer in answers if isinstance(answer, Plan)]
        if plans:
            write_report(options["report"], knee(plans), plans)
        if plans and picture is not None and draw is not None:
            write_bytes_to(draw(plans), picture)
    found = Frontier(ready, budgets, answers)
    refused = found.refused()
    if refused is not None:
        raise refused
    if options["format"] == "json":
        _print_json(found.data())
    elif not options["quiet"]:
        found.print(console(sys.stdout))


@cli.command(add_help_option=False)
@click.argument("plan_file", metavar="PLAN")
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--run", metavar="TARGET", help="Train a step beside a plain one: pkg.mod:build, or onnx for MODEL itself."
)
@click.option("--snapshot", metavar="FILE", help="Write the memory of that step there, for PyTorch's viewer (CUDA).")
@report_option()
@output_options()
def verify(plan_file: str, model: str | None, **options: Any) -> None:
    """Replay a plan independently, on MODEL too if it is given.

    With --run the plan is bound and trains a step; build returns (module, args), then if needed kwargs (a dict) and a
    loss (a function of the output).
    """
    target, picture = options["run"], options["snapshot"]
    if plan_file == STDIO and model == STDIO:
        raise UsageError("plan and model cannot both come from standard input", remedy="name one of the files")
    check_report(options["report"], plan_file, model)
    check_report(picture, plan_file, model, options["report"], option="--snapshot", usual="step.pickle")
    with activity(options["quiet"]) as spinner, readable(plan_file) as path:
        spinner.now(f"replaying {shown(plan_file)}")
        from ..planner import pipeline
        from ..planner.plan_file.reader import read_plan
        from .measured import beside_plain
        from .verification import Verdict, rebuild

        beside_plain.check_run(target, picture, model)
        if not is_plan(path):
            raise PlanFormatError(
                f"{shown(plan_file)!r} is not a plan", remedy="name the plan first: ogc-plan verify PLAN MODEL"
            )
        made = read_plan(path)
        timeline, ready, trained = pipeline.verify(made), None, None
        if model is not None:
            with readable(model) as source:
                refuse_plan(source, model)
                spinner.now(f"deriving the graph of {shown(model)}")
                ready = rebuild(made, source, shown(model))
                pipeline.check_model(made, ready)
                if target is not None:
                    trained = beside_plain.trained(made, source, target, snapshot=picture is not None, now=spinner.now)
        write_report(options["report"], made)
        if trained is not None and trained.snapshot is not None:
            write_bytes_to(trained.snapshot, picture)
    verdict = Verdict(made, timeline, ready)
    if options["format"] == "json":
        _print_json(verdict.data() | ({} if trained is None else {"trained": beside_plain.as_data(trained)}))
    elif not options["quiet"]:
        verdict.print(console(sys.stdout))
        if trained is not None:
            beside_plain.print_trained(console(sys.stdout), trained, made)
    wrong = None if trained is None else beside_plain.differing(trained)
    if wrong is not None:
        raise wrong


cli.add_command(emit)
cli.add_command(arena)
cli.add_command(fit)
cli.add_command(profile)


@cli.command(add_help_option=False)
@output_options()
def devices(**options: Any) -> None:
    """The devices for --device, and how to describe another one."""
    from .reports import device_report

    if options["format"] == "json":
        _print_json(device_report.describe())
    elif not options["quiet"]:
        device_report.print_devices(console(sys.stdout), verbose=options["verbose"])


for _command in (plan, *cli.commands.values()):
    for _parameter in _command.params:
        if isinstance(_parameter, click.Argument) or _parameter.metavar in ("FILE", "FOLDER", "PATH"):
            _parameter.type = click.Path()  # so that shells complete it


def _searches(words: Sequence[str]) -> bool:
    """Whether the command of a call takes a time limit."""
    at = _first_file(words)
    command = plan if at is None else cli.commands.get(words[at], plan)
    return any(parameter.name == "time_limit" for parameter in command.params)


def _search(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `search_options` as the planner takes them."""
    limit = None if options["time_limit"] is None else parse_duration(options["time_limit"])
    return {key: options[key] for key in ("scope", "seed", "effort")} | {"time_limit_s": limit}


def _within_limit(shape: ModelOptions, path: str, model: str, search: dict[str, Any]) -> Model:
    """Read the model; what that takes of the time limit, the search has less."""
    began, limit_s = perf_counter(), search["time_limit_s"]
    ready = shape.load(path, shown(model), limit_s)
    if limit_s is not None:
        search["time_limit_s"] = max(limit_s - (perf_counter() - began), 1e-3)
    return ready


def _print_json(value: Any) -> None:
    print_bytes((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every failure is one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug, defaults = "--debug" in words, None
    try:
        tolerate_any_text()
        if "_OGC_PLAN_COMPLETE" in os.environ:  # shell completion, click's own
            cli.main(args=words, prog_name="ogc-plan")
        if not words:
            with click.Context(cli, info_name="ogc-plan") as context:
                click.echo(cli.get_help(context), err=True)
            return 2
        defaults = read_defaults(words, {"plan": plan, **cli.commands})
        values = (
            {} if defaults is None else {"" if name == "plan" else name: of for name, of in defaults.values.items()}
        )
        with cli.make_context("ogc-plan", words, default_map=values) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(
            error, debug=debug, blamed=str if defaults is None else defaults.blamed, searches=_searches(words)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
