#!/usr/bin/python3
"""Draws a chart described as JSON on the standard input: peal-plot.py OUTPUT.(svg|png|pdf)

The description is documented in tools/common/plot.h. Tools call this through peal::tools::plot(); by hand:
    peal-plot.py busbw.svg < chart.json
Whatever goes wrong is one sentence on the error output and exit code 1.
"""
import json
import sys

COLOURS = ["#0b6e99", "#d9730d", "#448361", "#9065b0", "#d44c47", "#787774", "#c14c8a", "#cb912f"]
STYLES = {"line": {"linestyle": "-", "marker": "o"}, "dashed": {"linestyle": "--"},
          "dots": {"linestyle": "", "marker": "o"}}


def fail(sentence):
    print(f"cannot draw: {sentence}", file=sys.stderr)
    sys.exit(1)


def size_text(value, _position=None):
    """65536 as 64K, as the tools print sizes."""
    for power, suffix in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        unit = 1024 ** power
        if abs(value) >= unit:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}"


def numbers(values):
    return [float("nan") if value is None else float(value) for value in values]


def set_scale(axis, which, scale):
    setter = axis.set_xscale if which == "x" else axis.set_yscale
    if scale == "log2":
        setter("log", base=2)
    elif scale == "log10":
        setter("log", base=10)
    elif scale != "linear":
        raise ValueError(f'{which}Scale "{scale}" is none of linear, log2, log10')


def draw_lines(axis, panel):
    set_scale(axis, "x", panel.get("xScale", "linear"))
    set_scale(axis, "y", panel.get("yScale", "linear"))
    for index, series in enumerate(panel["series"]):
        if len(series["x"]) != len(series["y"]):
            raise ValueError(f'series "{series["name"]}" has {len(series["x"])} x and {len(series["y"])} y')
        style = dict(STYLES[series.get("style", "line")])
        if len(series["x"]) > 60 and style["linestyle"]:
            style.pop("marker", None)
        axis.plot(numbers(series["x"]), numbers(series["y"]), label=series["name"], markersize=3.5, linewidth=1.6,
                  color=COLOURS[index % len(COLOURS)], **style)
    axis.grid(True, which="major", color="#dddddd", linewidth=0.6)


def draw_bars(axis, panel):
    categories, series = panel["categories"], panel["series"]
    stacked = bool(panel.get("stacked", False))
    width = 0.7 if stacked else 0.8 / max(1, len(series))
    bottoms = [0.0] * len(categories)
    for index, one in enumerate(series):
        values = numbers(one["values"])
        if len(values) != len(categories):
            raise ValueError(f'series "{one["name"]}" has {len(values)} values for {len(categories)} categories')
        shift = 0 if stacked else (index - (len(series) - 1) / 2) * width
        axis.bar([at + shift for at in range(len(categories))], values, width, label=one["name"],
                 bottom=bottoms if stacked else None, color=COLOURS[index % len(COLOURS)])
        bottoms = [below + (0 if value != value else value) for below, value in zip(bottoms, values)]
    axis.set_xticks(range(len(categories)), categories)
    axis.grid(True, axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)


def draw(chart, output, pyplot, ticker):
    panels = chart["panels"]
    if not panels:
        raise ValueError("the chart has no panels")
    figure, grid = pyplot.subplots(1, len(panels), figsize=(7.2 * len(panels), 4.6), squeeze=False,
                                   layout="constrained")
    kinds = {"lines": draw_lines, "bars": draw_bars}
    for axis, panel in zip(grid[0], panels):
        if panel["kind"] not in kinds:
            raise ValueError(f'panel kind "{panel["kind"]}" is none of {", ".join(kinds)}')
        kinds[panel["kind"]](axis, panel)
        axis.set_title(panel.get("title", ""), fontsize=11)
        axis.set_xlabel(panel.get("xLabel", ""))
        axis.set_ylabel(panel.get("yLabel", ""))
        for which, unit in (("x", panel.get("xUnit")), ("y", panel.get("yUnit"))):
            if unit == "bytes":
                part = axis.xaxis if which == "x" else axis.yaxis
                part.set_major_formatter(ticker.FuncFormatter(size_text))
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        if any(series["name"] for series in panel["series"]):
            axis.legend(frameon=False, fontsize=9)
    heading = chart.get("title", "")
    if chart.get("subtitle"):
        heading += "\n" + chart["subtitle"]
    if heading:
        figure.suptitle(heading, fontsize=11)
    figure.savefig(output)


def main():
    if len(sys.argv) != 2:
        fail("usage: peal-plot.py OUTPUT.svg < chart.json")
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot, ticker
    except ImportError as missing:
        fail(f"{missing}. Install Debian's package: apt-get install python3-matplotlib")
    matplotlib.rcParams["svg.hashsalt"] = "peal"  # the same chart gives the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    try:
        chart = json.load(sys.stdin)
    except ValueError as fault:
        fail(f"the description is not JSON: {fault}")
    try:
        draw(chart, sys.argv[1], pyplot, ticker)
    except OSError as fault:
        fail(f"{sys.argv[1]}: {fault.strerror or fault}")
    except KeyError as missing:
        fail(f"the description lacks {missing}")
    except (ValueError, TypeError) as fault:
        fail(str(fault))


if __name__ == "__main__":
    main()
