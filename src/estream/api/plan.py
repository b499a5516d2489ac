"""``estream.plan``: what would run, how long it would take, what limits it, and why. Loads nothing but the manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estream.configurator.configure import profile_for
from estream.configurator.explain import Explained, explain
from estream.configurator.profile import Profile, read_profile
from estream.configurator.prompt_lengths import SHORT_TOKENS, reported_tokens, searched_shapes
from estream.configurator.search import SearchResult, choose
from estream.configurator.simulate import Simulator, SweepEstimate
from estream.configurator.use_store import learned_use
from estream.devices.opening import arrays_planner, open_within_memory
from estream.engine.activations import ArraysPlanner
from estream.engine.batch import BatchShape
from estream.engine.memory import ModelMemory
from estream.engine.options import Configuration, LoadOptions
from estream.errors import BudgetError, OptionError
from estream.host.doing import Doing, logged
from estream.host.sizes import parse_bytes
from estream.package.package import Package, open_package

#: Bytes of a key's or value's element on machines that are known by a profile alone.
_KV_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class PromptEstimate:
    """One prompt length: the first sweep of a fresh model, and ``repeat_ttft_s``, TTFT of a later one.

    ``estimate`` and ``repeat_ttft_s`` are None where the budget is below ``floor_bytes``.
    """

    prompt_tokens: int
    floor_bytes: int
    estimate: SweepEstimate | None
    repeat_ttft_s: float | None

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "floor_bytes": self.floor_bytes}
        if self.estimate is not None:
            facts |= self.estimate.to_json() | {"repeat_ttft_s": self.repeat_ttft_s}
        return facts


@dataclass(frozen=True)
class Plan:
    """What would run within ``budget_bytes``. Times in seconds, sizes in bytes; every time is an estimate."""

    package: Package
    profile: Profile
    budget_bytes: int
    memory: ModelMemory
    search: SearchResult
    predictions: tuple[PromptEstimate, ...]
    explained: tuple[Explained, ...]
    pinned_pages: int
    pinned_bytes: int

    @property
    def configuration(self) -> Configuration:
        return self.search.chosen.configuration

    @property
    def floor_bytes(self) -> int:
        """The smallest budget for a prompt of one token."""
        return self.memory.floor(BatchShape.of_prompt(1)).bytes

    def to_json(self) -> dict[str, Any]:
        runner_up = self.search.runner_up
        # Of a single prompt length the figures stand at the top too.
        single = self.predictions[0].to_json() if len(self.predictions) == 1 else {}
        return single | {
            "package": str(self.package.path),
            "profile": {"name": self.profile.name, "kind": self.profile.kind, "measured_at": self.profile.measured_at},
            "budget_bytes": self.budget_bytes,
            "floor_bytes": self.floor_bytes,
            "configuration": self.configuration.to_json(),
            "pinned_pages": self.pinned_pages,
            "pinned_bytes": self.pinned_bytes,
            "cost_s": self.search.chosen.cost_s,
            "runner_up": None if runner_up is None else runner_up.to_json(),
            "explanation": [item.to_json() for item in self.explained],
            "predictions": [p.to_json() for p in self.predictions],
        }


@dataclass(frozen=True)
class Planner:
    """A package on a machine, measured or read from a profile, ready to be planned for any budget."""

    package: Package
    profile: Profile
    options: LoadOptions
    plan_arrays: ArraysPlanner
    process_bytes: int
    default_budget: int

    def memory(self, budget: int) -> ModelMemory:
        """The model within ``budget`` bytes."""
        return ModelMemory(self.package.manifest, budget, self.process_bytes, self.plan_arrays)

    def plan(self, budget: int, lengths: Sequence[int] | None = None) -> Plan:
        """Choose within ``budget`` bytes and estimate prompts of these lengths in tokens.

        Raises:
            BudgetError: the budget is below the floor even for one token.
            OptionError: a length is below 1 or beyond the context.

        """
        context = _check_lengths(self.package, lengths)
        memory = self.memory(budget)
        memory.check(BatchShape.of_prompt(1))
        fitting = tuple(shape for shape in map(BatchShape.of_prompt, lengths or ()) if memory.fits(shape))
        use = learned_use(self.package)
        search = choose(memory, self.profile, self.options.given, fitting or searched_shapes(memory), use)
        simulator = Simulator(memory, self.profile, use=use)
        asked = lengths or reported_tokens(context)
        arena = simulator.arena(search.chosen.configuration)
        return Plan(
            package=self.package,
            profile=self.profile,
            budget_bytes=budget,
            memory=memory,
            search=search,
            predictions=tuple(_estimate(simulator, search.chosen.configuration, n) for n in asked),
            explained=explain(memory, self.profile, search, self.options, arena),
            pinned_pages=len(arena.pinned),
            pinned_bytes=arena.pinned_bytes,
        )


def _estimate(simulator: Simulator, configuration: Configuration, tokens: int) -> PromptEstimate:
    shape = BatchShape.of_prompt(tokens)
    floor = simulator.memory.floor(shape).bytes
    if floor > simulator.memory.budget_bytes:
        return PromptEstimate(tokens, floor, None, None)
    first = simulator.estimate(configuration, shape)
    later = simulator.estimate(configuration, shape, repeated=True)
    return PromptEstimate(tokens, floor, first, later.ttft_s)


def _check_lengths(package: Package, lengths: Sequence[int] | None) -> int:
    """Refuse prompts that the model cannot read; returns its context."""
    context = package.manifest.config.context
    if bad := [n for n in lengths or () if not 1 <= n <= context]:
        raise OptionError(f"a prompt of {bad[0]} tokens cannot be planned: the context is {context}")
    return context


def planner(
    path: str | Path,
    options: LoadOptions,
    device_profile: str | Path | None = None,
    lengths: Sequence[int] | None = None,
    doing: Doing = logged,
) -> Planner:
    """A planner for this machine, measured now if it never was for this package, or for the machine of a written profile.

    ``doing`` is told what takes long.

    Raises:
        PackageError: the package cannot be used.
        OptionError: the profile or an option cannot be used.

    """
    options.check()
    # Another machine's plan is for whatever device the package is made for; it loads nothing here.
    package = open_package(path, options.device if device_profile is None else None)
    # Before anything is measured.
    _check_lengths(package, lengths)
    if device_profile is not None:
        profile = read_profile(Path(device_profile))
        if options.memory is None and profile.memory_bytes is None:
            raise OptionError(f"{device_profile}: has no 'memory_bytes', so a memory budget must be given")
        arrays = arrays_planner(package.manifest, options.float_activations, _KV_ELEMENT_BYTES)
        return Planner(package, profile, options, arrays, profile.process_bytes, profile.memory_bytes or 0)
    device, memory = open_within_memory(package, options)
    memory.check(BatchShape.of_prompt(1))
    profile, _ = profile_for(package, device, options, memory, doing=doing)
    return Planner(package, profile, options, memory.plan_arrays, memory.process_bytes, memory.budget_bytes)


def plan(
    path: str | Path,
    memory: str | int | None = None,
    prompt_tokens: int | Sequence[int] | None = None,
    threads: int | None = None,
    activations: str = "int8",
    device_profile: str | Path | None = None,
) -> Plan:
    """Say what would run, without loading the model.

    The first plan for a package on a machine measures it, which takes some seconds; later ones take well under a second.

    Args:
        path: the ``NAME.estream`` folder.
        memory: budget of the whole process, such as "1GiB" or bytes; None derives it from the machine.
        prompt_tokens: a prompt length, or several, to choose for and to estimate.
        threads: compute threads; None takes what affinity and cgroup quota grant.
        activations: "int8" or "float".
        device_profile: a profile file of another machine; the plan is then about that one.

    Raises:
        PackageError, OptionError, BudgetError: as :func:`estream.load`.

    """
    options = LoadOptions(None if memory is None else parse_bytes(memory), threads, activations=activations)
    lengths = [prompt_tokens] if isinstance(prompt_tokens, int) else prompt_tokens
    ready = planner(path, options, device_profile, lengths)
    return ready.plan(options.memory or ready.default_budget, lengths)


def sweep_budgets(ready: Planner, tokens: int, steps: int = 12) -> list[tuple[int, Plan]]:
    """Plans for budgets from the floor of this prompt length to where everything stays in memory, evenly on a log scale.

    Each estimates this length first, then a short prompt.
    """
    low = ready.memory(1 << 50).floor(BatchShape.of_prompt(tokens)).bytes
    tape = ready.package.manifest.tape
    everything = sum(p.padded_bytes for p in tape)
    high = max(low * 2, int((low + everything) * 1.05) + (64 << 20))
    found: list[tuple[int, Plan]] = []
    for step in range(steps):
        budget = round(low * (high / low) ** (step / (steps - 1)))
        try:
            found.append((budget, ready.plan(budget, [tokens, min(tokens, SHORT_TOKENS)])))
        except BudgetError:
            continue
    return found


def tune(
    path: str | Path,
    memory: str | int | None = None,
    threads: int | None = None,
    activations: str = "int8",
    force: bool = False,
    doing: Doing = logged,
) -> tuple[Profile, bool]:
    """Measure this machine for a package and remember it; returns the profile and whether it was measured now.

    ``force`` measures in any case: on an idle machine in place of what is kept, else the better of both counts.

    Raises:
        PackageError, OptionError, BudgetError: as :func:`estream.load`.

    """
    options = LoadOptions(None if memory is None else parse_bytes(memory), threads, activations=activations)
    options.check()
    package = open_package(path, options.device)
    device, within = open_within_memory(package, options)
    return profile_for(package, device, options, within, force=force, doing=doing)


__all__ = ["Plan", "Planner", "PromptEstimate", "plan", "planner", "sweep_budgets", "tune"]
