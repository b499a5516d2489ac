"""Property: alone, in any company, with and without what prompts share computed once, in any budget: the same bits."""

import numpy as np
import pytest
from budgets import budget
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import FAMILIES, make_tiny

import estream
from estream.api.model import Model
from estream.api.result import Reading
from estream.conversion.convert import ConvertOptions, convert
from estream.devices.cpu import activations, head
from estream.engine.options import LoadOptions
from estream.engine.wanted import ALL, Among, Hidden, Likeliest, Logits, LogProbabilities, Request, Wanted
from estream.host.sizes import KiB, MiB
from estream.package.package import Package

#: Grouped queries, sinks with a window of 16 or so, latent attention, linear attention of both kinds, LongRoPE.
KINDS = ("olmoe", "gpt_oss", "deepseek_v2", "qwen3_5_moe", "qwen3_next", "phimoe")


def ids(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 330, count).tolist()


STEM = ids(1, 200)
#: Branches at borders of runs and blocks, branches of branches, one prompt that is the beginning of others, the same twice.
PROMPTS = [
    *(STEM[:n] + ids(n, m) for n, m in ((16, 9), (63, 3), (64, 70), (65, 1), (130, 5), (200, 2), (200, 40), (31, 100))),
    STEM[:130],
    STEM[:130] + ids(9, 20) + ids(10, 3),
    STEM[:130] + ids(9, 20) + ids(11, 64),
    STEM[:130] + ids(9, 20),
    STEM[:130] + ids(9, 20),
    STEM[:12] + ids(5, 4),
    ids(6, 300),
    ids(6, 40),
    ids(7, 1),
    STEM + ids(12, 120),
    STEM + ids(12, 100) + ids(13, 1),
    STEM[:7],
]


def kinds_of(prompt: list[int], number: int) -> Request:
    positions = ALL if number % 2 else [len(prompt) - 1, 0, len(prompt) // 2]
    count = len(prompt) if number % 2 else 3
    wanted: tuple[Wanted, ...] = (
        Logits(),
        Likeliest(1 + number),
        LogProbabilities(np.array(ids(number, 2 * count)).reshape(count, 2)),
        Among((3, 300, number + 7)),
        Hidden(),
        Hidden(mean=True),
    )
    return Request(prompt, positions, wanted[number % len(wanted)])


REQUESTS = [kinds_of(prompt, number) for number, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module", params=KINDS)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("shared")
    make_tiny(folder / "source", request.param, next(iter(FAMILIES[request.param].shapes.values())))
    return convert(folder / "source", folder / "shared.estream", ConvertOptions(8, 32))


@pytest.fixture(scope="module")
def alone(package: Package) -> list[Reading]:
    with estream.load(package.path, threads=1) as model:
        return [model.read([request])[0] for request in REQUESTS]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.sampled_from([2, 7, 20]).flatmap(lambda n: st.permutations(range(len(REQUESTS))).map(lambda p: p[:n])),
    share=st.booleans(),
    spare=st.sampled_from([6, 8, 512]),
    threads=st.integers(1, 3),
    chunk=st.sampled_from([1, 16, 37, 512]),
)
def test_the_same_bits(package, alone, order: list[int], share: bool, spare: int, threads: int, chunk: int):
    requests = [REQUESTS[i] for i in order]
    options = LoadOptions(budget(package, [r.prompt for r in requests], spare * MiB), threads, request_bytes=64 * KiB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations, "CHUNK", chunk)
        for module in ("cpu.attention", "cpu.gated_delta"):
            patch.setattr(f"estream.devices.{module}.CHUNK", chunk)
        for module in (activations, head):
            patch.setattr(module, "HEAD_ROWS", chunk)
        patch.setattr("estream.devices.cpu.device.CpuDevice.shares_prefixes", share)
        with Model(package, options) as model:
            found = model.read(requests)
    for index, reading in zip(order, found, strict=True):
        for name, values in reading.values.items():
            np.testing.assert_array_equal(values, alone[index].values[name], err_msg=f"{name} of {index}")
    assert share or reading.stats.computed_tokens == reading.stats.prompt_tokens


def test_what_is_shared_is_computed_once(package: Package):
    instruction = ids(3, 150)
    documents = [instruction + ids(100 + i, 20) for i in range(8)]
    with estream.load(package.path, threads=1) as model:
        stats = model.prefill_batch(documents)[0].stats
        long = package.manifest.config.attention.rope.scaling == "longrope"
        assert stats.prompt_tokens == 8 * 170
        assert stats.computed_tokens == 150 + 8 * 20
        # LongRoPE rotates a prompt beyond the original context in another way.
        original = package.manifest.config.attention.rope.original_context
        if long:
            beyond = instruction + ids(99, original)
            stats = model.prefill_batch([*documents, beyond])[0].stats
            assert stats.computed_tokens == 150 + 8 * 20 + 150 + original
