"""``estream.plan``: what would run, how long it would take, what limits it, and why. Loads nothing but the manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estream.configurator.configure import profile_for
from estream.configurator.explain import Explained, explain
from estream.configurator.profile import Profile, read_profile
from estream.configurator.search import Choice, choose, usual_workloads
from estream.configurator.simulate import Prediction, Setting, Simulator
from estream.configurator.simulated import Workload
from estream.devices.cpu.device import CpuDevice
from estream.engine.options import Configuration, LoadOptions
from estream.errors import BudgetError, OptionError
from estream.host import limits
from estream.host.sizes import parse_bytes
from estream.package.package import Package, open_package

#: Prompt lengths that are predicted where none is asked for.
USUAL_LENGTHS = (128, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class PromptPrediction:
    """One prompt length: the first sweep of a fresh model, and ``repeat_ttft_s``, TTFT of a later one.

    ``prediction`` and ``repeat_ttft_s`` are None where the budget is below ``floor_bytes``.
    """

    prompt_tokens: int
    floor_bytes: int
    prediction: Prediction | None
    repeat_ttft_s: float | None

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "floor_bytes": self.floor_bytes}
        if self.prediction is not None:
            facts |= self.prediction.to_json() | {"repeat_ttft_s": self.repeat_ttft_s}
        return facts


@dataclass(frozen=True)
class Plan:
    """What would run within ``budget_bytes``. Times in seconds, sizes in bytes; every time is a prediction."""

    package: Package
    profile: Profile
    budget_bytes: int
    setting: Setting
    choice: Choice
    predictions: tuple[PromptPrediction, ...]
    explained: tuple[Explained, ...]
    pinned_pages: int
    pinned_bytes: int

    @property
    def configuration(self) -> Configuration:
        return self.choice.chosen.configuration

    @property
    def floor_bytes(self) -> int:
        """The smallest budget for a prompt of one token."""
        return self.setting.floor(Workload.prompt(1)).bytes

    def to_json(self) -> dict[str, Any]:
        runner_up = self.choice.runner_up
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
            "cost_s": self.choice.chosen.cost_s,
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
    kv_element_bytes: int
    process_bytes: int
    default_budget: int

    def setting(self, budget: int) -> Setting:
        floats = self.options.activations == "float"
        return Setting(self.package.manifest, budget, self.process_bytes, floats, self.kv_element_bytes)

    def plan(self, budget: int, lengths: Sequence[int] | None = None) -> Plan:
        """Choose within ``budget`` bytes and predict these prompt lengths.

        Raises:
            BudgetError: the budget is below the floor even for one token.
            OptionError: a length is below 1 or beyond the context.

        """
        context = _check_lengths(self.package, lengths)
        setting = self.setting(budget)
        setting.floor(Workload.prompt(1)).check(budget, 1)
        fitting = [n for n in lengths or () if setting.floor(Workload.prompt(n)).bytes <= budget]
        workloads = tuple(map(Workload.prompt, fitting)) or usual_workloads(setting)
        choice = choose(setting, self.profile, self.options.given, workloads)
        simulator = Simulator(setting, self.profile)
        asked = lengths or [n for n in USUAL_LENGTHS if n <= context] or [context]
        arena = simulator.arena(choice.chosen.configuration)
        return Plan(
            package=self.package,
            profile=self.profile,
            budget_bytes=budget,
            setting=setting,
            choice=choice,
            predictions=tuple(_predict(simulator, choice.chosen.configuration, n) for n in asked),
            explained=explain(setting, self.profile, choice, self.options, arena),
            pinned_pages=len(arena.pinned),
            pinned_bytes=arena.pinned_bytes,
        )


def _predict(simulator: Simulator, configuration: Configuration, tokens: int) -> PromptPrediction:
    workload = Workload.prompt(tokens)
    floor = simulator.setting.floor(workload).bytes
    if floor > simulator.setting.budget:
        return PromptPrediction(tokens, floor, None, None)
    first = simulator.predict(configuration, workload)
    later = simulator.predict(configuration, workload, repeated=True)
    return PromptPrediction(tokens, floor, first, later.ttft_s)


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
) -> Planner:
    """A planner for this machine, measured now if it never was for this package, or for the machine of a written profile.

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
        return Planner(package, profile, options, 2, profile.process_bytes, profile.memory_bytes or 0)
    device = CpuDevice(package.manifest.config, options.threads or limits.default_threads(), options.activations == "float")
    process = limits.resident_bytes()
    budget = limits.budget_of(options.memory)
    setting = Setting(package.manifest, budget, process, options.activations == "float", device.kv_element_bytes)
    setting.floor(Workload.prompt(1)).check(budget, 1)
    profile, _ = profile_for(package, device, options, setting)
    return Planner(package, profile, options, device.kv_element_bytes, process, budget)


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
        prompt_tokens: a prompt length, or several, to choose for and to predict.
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
    """Plans for budgets from the floor of this prompt length to where everything stays in memory, evenly on a log scale."""
    low = ready.setting(1 << 50).floor(Workload.prompt(tokens)).bytes
    tape = ready.package.manifest.tape
    everything = sum(p.padded_bytes for p in tape)
    high = max(low * 2, int((low + everything) * 1.05) + (64 << 20))
    found: list[tuple[int, Plan]] = []
    for step in range(steps):
        budget = round(low * (high / low) ** (step / (steps - 1)))
        try:
            found.append((budget, ready.plan(budget, [tokens])))
        except BudgetError:
            continue
    return found


def tune(
    path: str | Path,
    memory: str | int | None = None,
    threads: int | None = None,
    activations: str = "int8",
    force: bool = False,
) -> tuple[Profile, bool]:
    """Measure this machine for a package and remember it; returns the profile and whether it was measured now.

    Raises:
        PackageError, OptionError, BudgetError: as :func:`estream.load`.

    """
    options = LoadOptions(None if memory is None else parse_bytes(memory), threads, activations=activations)
    options.check()
    package = open_package(path, options.device)
    device = CpuDevice(package.manifest.config, options.threads or limits.default_threads(), activations == "float")
    budget = limits.budget_of(options.memory)
    process = limits.resident_bytes()
    setting = Setting(package.manifest, budget, process, activations == "float", device.kv_element_bytes)
    return profile_for(package, device, options, setting, force=force)


__all__ = ["Plan", "Planner", "PromptPrediction", "plan", "planner", "sweep_budgets", "tune"]
