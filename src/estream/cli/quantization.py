"""Prints the errors of quantisation."""

from estream.cli.output import print_table
from estream.package.quantization_report import QuantizationReport


def summary(report: QuantizationReport) -> str:
    """Return one line with the largest error of any layer."""
    layers = report.layers
    parts = [f"experts {max(x.experts for x in layers):.1%}", f"attention {max(x.attention for x in layers):.2%}"]
    return f"largest relative error of the weights: {', '.join(parts)}, head {report.head:.2%}" + outputs(report)


def outputs(report: QuantizationReport) -> str:
    """Return the largest error of the experts' outputs on the calibration text; empty without calibration."""
    if report.calibration is None:
        return ""
    largest = max(x.outputs or 0.0 for x in report.layers)
    scarce = sum(len(x.scarce) for x in report.layers)
    text = f"; of the experts' outputs on {report.calibration['tokens']} tokens of {report.calibration['text']}: {largest:.1%}"
    return text + (f"; {scarce} experts saw too few tokens and borrowed others" if scarce else "")


def largest_errors(report: QuantizationReport) -> dict[str, float]:
    """Return the largest relative error of any layer's weights, by kind of page."""
    return {"attention": max(x.attention for x in report.layers), "expert": max(x.experts for x in report.layers)}


def print_layers(report: QuantizationReport) -> None:
    """Print a table with one row per layer."""
    scarce = "experts that saw few tokens"
    rows = []
    for x in report.layers:
        outputs = "" if x.outputs is None else f"{x.outputs:.2%}"
        rows.append((str(x.layer), f"{x.attention:.2%}", f"{x.experts:.2%}", outputs, ", ".join(map(str, x.scarce))))
    print_table(("layer", "attention", "experts", "outputs", scarce), rows, text=scarce)
