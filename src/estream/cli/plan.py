"""``estream plan`` and ``estream tune``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from estream.api.plan import Plan, Planner, PromptEstimate, planner, sweep_budgets, tune
from estream.cli.inspect import Json, PackagePath
from estream.cli.options import MOST_LANES, Activations, Memory, Threads, lengths_of, memory_of, size_of
from estream.cli.output import doing, out, print_json, print_pairs, print_table, say
from estream.configurator import store
from estream.configurator.profile import Profile
from estream.engine.options import LoadOptions
from estream.errors import OptionError
from estream.host.sizes import format_bytes
from estream.report.budget_picture import draw_budgets

#: Characters of the bar of the longest time in a table of budgets.
_BAR = 40


def plan_command(
    path: PackagePath,
    memory: Memory = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option("--prompt-tokens", help="Prompt lengths to choose for and to predict, such as 512 or 128,4096."),
    ] = None,
    threads: Threads = None,
    activations: Activations = "int8",
    lanes: Annotated[
        int | None, typer.Option("--lanes", min=1, max=MOST_LANES, help="Reader lanes; chosen where not given.")
    ] = None,
    request: Annotated[str | None, typer.Option("--request", help="Bytes of one read, such as 2MiB.")] = None,
    ring: Annotated[str | None, typer.Option("--ring", help="Room for reading ahead, such as 256MiB.")] = None,
    pinned: Annotated[str | None, typer.Option("--pinned", help="The most that stays between sweeps, such as 1GiB.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say where each value comes from.")] = False,
    budget_sweep: Annotated[
        bool, typer.Option("--budget-sweep", help="Predict over budgets from the floor to everything in memory.")
    ] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the budget sweep into this PNG.")] = None,
    device_profile: Annotated[
        str | None, typer.Option("--device-profile", help="Plan for the machine of this profile: a file or a known name.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict what would run within a budget, how long it takes, what limits it, and why; loads nothing."""
    options = LoadOptions(
        memory_of(memory),
        threads,
        activations=activations,
        lanes=lanes,
        request_bytes=size_of("--request", request),
        ring_bytes=size_of("--ring", ring),
        pinned_bytes=size_of("--pinned", pinned),
    )
    lengths = None if prompt_tokens is None else lengths_of("--prompt-tokens", prompt_tokens)
    if plot and not budget_sweep:
        raise OptionError("--plot draws a --budget-sweep; give that too")
    ready = planner(path, options, None if device_profile is None else profile_path(device_profile), lengths, doing(as_json))
    if budget_sweep:
        _budgets(ready, lengths[0] if lengths else 1024, plot, as_json)
        return
    plan = ready.plan(options.memory or ready.default_budget, lengths)
    if as_json:
        print_json(plan.to_json())
    else:
        _print(plan, explain)


def tune_command(
    path: PackagePath,
    memory: Memory = None,
    threads: Threads = None,
    activations: Activations = "int8",
    force: Annotated[bool, typer.Option("--force", help="Measure again, also where this machine was measured before.")] = False,
    as_json: Json = False,
) -> None:
    """Measure this machine for a package once, and keep the result for loading, running and planning."""
    budget = memory_of(memory)
    profile, now = tune(path, budget, threads, activations, force, doing(as_json))
    if as_json:
        kept = store.path_of(profile.key)
        print_json(profile.to_json() | {"measured_now": now, "path": None if kept is None else str(kept)})
        return
    when = "measured now" if now else f"measured {profile.measured_at}, kept; --force measures again"
    print_pairs(f"{path}: {when}", _facts(profile))


def profile_path(name: str) -> Path:
    """Return a profile's file, from its path or from the name of a profile that comes with estream.

    Raises:
        OptionError: there is no such file and no such name.

    """
    if Path(name).exists():
        return Path(name)
    known = sorted((Path(store.__file__).parent / "profiles").glob("*.json"))
    for path in known:
        if path.stem == name:
            return path
    raise OptionError(f"--device-profile: no file '{name}', and the known names are {', '.join(p.stem for p in known)}")


def _facts(profile: Profile) -> dict[str, str]:
    storage, costs = profile.storage, profile.to_json()["compute"]
    rows = {}
    for lanes, curve in storage.rates.items():
        rates = [f"{format_bytes(p.x)} {format_bytes(p.value)}/s" for p in curve.points]
        rows[f"{lanes} lane{'s' if lanes > 1 else ''}"] = "   ".join(rates)
    tables = {"expert": costs["expert"]} | {f"{kind} attention": rows for kind, rows in costs["attention"].items()}
    for name, points in tables.items():
        sample = points[:: max(1, len(points) // 5)]
        rows[f"{name} page"] = "   ".join(f"{x:.0f} tokens {1e3 * s:.2f} ms" for x, s, _ in sample)
    rows["while reading"] = f"computing takes {storage.compute_slowdown:.2f} x as long"
    rows["while computing"] = f"reading takes {storage.read_slowdown:.2f} x as long"
    rows["others meanwhile"] = _others(profile)
    rows["kept in"] = str(store.path_of(profile.key) or "no file: this user has no home; ESTREAM_CACHE may name a folder")
    return rows


def _others(profile: Profile) -> str:
    """What the rest of the machine did while it was measured."""
    if profile.others is None:
        return "unknown"
    later = "; a load measures again when the machine is idle" if profile.noisy else ""
    return f"took {profile.others:.0%} of the machine{later}"


def _print(plan: Plan, explain: bool) -> None:
    c = plan.configuration
    facts = {
        "machine": plan.profile.name + (_measured(plan.profile) if plan.profile.kind == "measured" else ""),
        "budget": f"{format_bytes(plan.budget_bytes)} (the floor for one token is {format_bytes(plan.floor_bytes)})",
        "reading": f"{c.lanes} lanes, requests of {format_bytes(c.request_bytes)}",
        "arena": f"ring {format_bytes(c.ring_bytes)}, {plan.pinned_pages} pages pinned ({format_bytes(plan.pinned_bytes)})",
    }
    print_pairs(str(plan.package.path), facts)
    out.print()
    columns = ("prompt tokens", "TTFT", "again", "waiting", "read", "peak memory", "limit")
    print_table(columns, map(_prediction, plan.predictions), left=("limit",))
    out.print()
    say("These are predictions: TTFT of a freshly loaded model, and again with its pinned pages in memory.")
    for source in plan.profile.sources:
        say(f"- {source}")
    if explain:
        _explain(plan)


def _measured(profile: Profile) -> str:
    busy = f" while others {_others(profile)}" if profile.noisy else ""
    return f", measured {profile.measured_at}{busy}"


def _prediction(p: PromptEstimate) -> tuple[str, ...]:
    if (r := p.estimate) is None:
        return (str(p.prompt_tokens), "-", "-", "-", "-", "-", f"needs {format_bytes(p.floor_bytes)}")
    times = (f"{r.ttft_s:.2f} s", f"{p.repeat_ttft_s:.2f} s", f"{r.stall_s:.2f} s")
    limit = "reading" if r.limit == "read" else "computing"
    return (str(p.prompt_tokens), *times, format_bytes(r.bytes_read), format_bytes(r.peak_bytes), limit)


def _explain(plan: Plan) -> None:
    out.print()
    rows = [(item.name, item.value, item.origin, item.why) for item in plan.explained]
    print_table(("value", "", "origin", "why"), rows, left=("value", "", "origin"), text="why")


def _budgets(ready: Planner, tokens: int, plot: Path | None, as_json: bool) -> None:
    rows = [(budget, plan.predictions[0], plan.predictions[1]) for budget, plan in sweep_budgets(ready, tokens)]
    if plot:
        draw_budgets([(b, p.estimate.ttft_s, p.repeat_ttft_s or 0.0) for b, p, _ in rows if p.estimate], tokens, plot)
    if as_json:
        facts: dict[str, Any] = {"package": str(ready.package.path), "prompt_tokens": tokens}
        budgets = [{"budget_bytes": budget} | p.to_json() | {"short": short.to_json()} for budget, p, short in rows]
        print_json(facts | {"budgets": budgets})
        return
    longest = max(p.repeat_ttft_s or 0.0 for _, p, _ in rows)
    cells = []
    for budget, p, short in rows:
        if (r := p.estimate) is not None and p.repeat_ttft_s is not None:
            bar = "#" * max(1, round(_BAR * p.repeat_ttft_s / longest))
            limit = "reading" if r.limit == "read" else "computing"
            times = (f"{r.ttft_s:.2f} s", f"{p.repeat_ttft_s:.2f} s", *_short_times(short), format_bytes(r.peak_bytes))
            cells.append((format_bytes(budget), *times, limit, bar))
    short_tokens = rows[0][2].prompt_tokens
    say(f"{ready.package.path}, {tokens} tokens, and {short_tokens}, predicted on {ready.profile.name}")
    columns = ("budget", "TTFT", "again", f"{short_tokens} tokens", "again", "peak memory", "limit", "again, drawn")
    print_table(columns, cells, left=("limit", "again, drawn"))
    if plot:
        say(f"{plot}: drawn")


def _short_times(short: PromptEstimate) -> tuple[str, str]:
    if short.estimate is None or short.repeat_ttft_s is None:
        return "-", "-"
    return f"{short.estimate.ttft_s:.2f} s", f"{short.repeat_ttft_s:.2f} s"
