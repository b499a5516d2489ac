"""What quantisation costs the demo model, measured over 400 packages that it never saw."""

from pathlib import Path

import pytest
import torch
from demo_scores import Scores, Texts, kl, measure, score
from llama_quants import BITS, q4_k_m, q6_k
from outliers import same_function, with_outliers
from paths import CALIBRATION, DEMO
from tiny import logits
from tolerances import (
    ACCURACY_4BIT,
    KL_4BIT,
    KL_8BIT,
    KL_CALIBRATED,
    KL_CALIBRATED_32,
    KL_OUTLIERS,
    PERPLEXITY_4BIT,
    PERPLEXITY_CALIBRATED,
    PERPLEXITY_CALIBRATED_32,
    PERPLEXITY_NOISE,
    SAME_TOP_8BIT,
)
from transformers import OlmoeForCausalLM

from estream.cli.inspect import describe
from estream.conversion.convert import ConvertOptions, convert
from estream.package.package import Package


@pytest.fixture(scope="module")
def plain(demo_package: Package, texts: Texts) -> Scores:
    return measure(demo_package, texts)


@pytest.mark.parametrize(
    ("group", "most_kl", "most_perplexity"),
    [
        (64, KL_CALIBRATED, PERPLEXITY_CALIBRATED),
        pytest.param(32, KL_CALIBRATED_32, PERPLEXITY_CALIBRATED_32, marks=pytest.mark.slow),
    ],
)
def test_a_calibration_text_halves_the_cost_of_four_bits(
    tmp_path: Path, texts: Texts, reference: Scores, plain: Scores, record_property, group, most_kl, most_perplexity
):
    options = ConvertOptions(group=group, calibrate=CALIBRATION)
    found = measure(convert(DEMO, tmp_path / "c.estream", options), texts)
    record_property("kl", kl(reference, found))
    record_property("perplexity_ratio", found.perplexity / reference.perplexity)
    assert kl(reference, found) <= most_kl
    assert kl(reference, found) <= 0.7 * kl(reference, plain)
    assert found.perplexity <= most_perplexity * reference.perplexity


@pytest.mark.slow
def test_at_fewer_bits_it_is_closer_than_q4_k_m(tmp_path: Path, texts: Texts, reference: Scores, record_property):
    model = OlmoeForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    bits = weights = 0.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers." not in name or parameter.dim() < 2 or name.endswith("mlp.gate.weight"):
                continue
            layer = int(name.split("layers.")[1].split(".")[0])
            values, grid = q4_k_m(name, parameter.numpy(), layer, model.config.num_hidden_layers)
            parameter.copy_(torch.from_numpy(values))
            bits, weights = bits + BITS[grid] * parameter.numel(), weights + parameter.numel()
        head = model.lm_head.weight
        bits, weights = bits + BITS["Q6_K"] * head.numel(), weights + head.numel()
        model.lm_head.weight = torch.nn.Parameter(torch.from_numpy(q6_k(head.numpy())))
    theirs = score(texts, (logits(model, torch.tensor(prompt + answer).numpy()) for prompt, answer in texts))
    package = convert(DEMO, tmp_path / "c.estream", ConvertOptions(group=128, calibrate=CALIBRATION))
    ours = measure(package, texts)
    record_property("kl", (kl(reference, ours), kl(reference, theirs)))
    assert describe(package)["bits_per_weight"] <= bits / weights
    assert kl(reference, ours) <= kl(reference, theirs)
    assert ours.perplexity <= PERPLEXITY_NOISE * theirs.perplexity


@pytest.mark.parametrize("calibrate", [None, pytest.param(CALIBRATION, marks=pytest.mark.slow)])
def test_channels_that_stand_out_cost_next_to_nothing(
    tmp_path: Path, texts: Texts, reference: Scores, demo_package: Package, plain: Scores, calibrate: Path | None
):
    source = with_outliers(DEMO, tmp_path / "outliers")
    before, after = (OlmoeForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in (DEMO, source))
    assert same_function(before, after, torch.tensor([texts[0][0]]))
    package = convert(source, tmp_path / "outliers.estream", ConvertOptions(calibrate=calibrate))
    assert kl(reference, measure(package, texts)) <= KL_OUTLIERS * kl(reference, plain)


def test_eight_bits_change_next_to_nothing(demo_package_8bit: Package, texts: Texts, reference: Scores, record_property):
    found = measure(demo_package_8bit, texts)
    same = (found.next_token.argmax(-1) == reference.next_token.argmax(-1)).mean()
    record_property("kl", kl(reference, found))
    record_property("same_top", float(same))
    record_property("perplexity_ratio", found.perplexity / reference.perplexity)
    assert same >= SAME_TOP_8BIT
    assert kl(reference, found) <= KL_8BIT


def test_four_bits_cost_less_than_a_percent(plain: Scores, reference: Scores, record_property):
    record_property("kl", kl(reference, plain))
    record_property("perplexity_ratio", plain.perplexity / reference.perplexity)
    record_property("accuracy_difference", float(plain.right.mean() - reference.right.mean()))
    assert plain.perplexity <= PERPLEXITY_4BIT * reference.perplexity
    assert kl(reference, plain) <= KL_4BIT
    assert abs(plain.right.mean() - reference.right.mean()) <= ACCURACY_4BIT
