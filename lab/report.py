"""A report as one HTML page with drawings in it. It loads nothing, so that it opens without a network."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from lab.figures import PolicyOutcome, ReplayReport
from lab.trace import DAY_S

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
HEAT = ("#f7fbff", "#e3eef9", "#cfe1f2", "#b5d4e9", "#93c3df", "#6daed5", "#4b97c9", "#2f7ebc", "#1864aa", "#0a4a90", "#08306b")
"""From an empty host to a full one, in steps of a tenth."""
WIDTH, HEIGHT, LEFT, BELOW = 720, 220, 56, 28
TICKS = 5
ROUND_FACTORS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Steps between ticks, times a power of ten."""
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem } h3 { font-size: 1rem }
table { border-collapse: collapse; width: 100% } th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th { vertical-align: bottom; font-weight: 600 } th:first-child, td:first-child, .text { text-align: left }
tr.bound td { color: #555; font-style: italic } svg { max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif }
.key { margin-right: 1.2rem; white-space: nowrap }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem }
code { background: #f3f3f3; padding: 0 .2rem } .wide { overflow-x: auto }
"""

HEADINGS = (
    "Policy",
    "Rejected",
    "Core-days lost %",
    "Memory-days lost %",
    "Empty hosts",
    "Stranded vCPUs %",
    "Stranded memory %",
    "Imbalance %",
    "CPU us per server",
)
"""Of the table that every form of the results has."""
TEXTS = ("Filter", "Reason", "Option", "Value")
"""Headings of columns of text."""
BOUND = "(lower bound)"

Row = tuple[object, ...]


class Line(NamedTuple):
    """A line of a drawing: ``points`` in the units of its axes."""

    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def rows_of(report: ReplayReport) -> list[Row]:
    """The bound, and then every policy, with as many values as there are HEADINGS. None: not known."""
    bound = report.demand.bound
    rows: list[Row] = [
        (
            BOUND,
            bound.rejected,
            _round_number(bound.vcpu_days_lost),
            _round_number(bound.memory_days_lost),
            None,
            None,
            None,
            None,
            None,
        )
    ]
    for outcome in report.policies:
        shares = (outcome.stranded_vcpus, outcome.stranded_memory, outcome.imbalance)
        rows.append(
            (
                outcome.policy,
                outcome.rejected,
                _round_number(outcome.vcpu_days_lost),
                _round_number(outcome.memory_days_lost),
                round(outcome.empty_hosts, 1),
                *(round(share * 100.0, 2) for share in shares),
                round(outcome.cpu_us, 1),
            )
        )
    return rows


def _round_number(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def html_page(report: ReplayReport) -> str:
    """The whole page."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Replay of {escape(report.trace)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Replay of {escape(report.trace)} on {report.fleet_hosts:,} hosts</h1>",
        f"<p>{escape(_summary_text(report))}</p>",
        _table_html(HEADINGS, rows_of(report), bound=True),
        "<p>The lower bound is what no policy can beat, by volume. Means are over the times of samples. Stranded: free on hosts "
        "that have a smaller free share of the other resource. Imbalance: the standard deviation of use between hosts.</p>",
        _keys_html(report.policies),
        _drawings_html(report),
        "<h2>Rejects by reason</h2>",
        _reasons_html(report.policies),
        "<h2>Use of hosts</h2>",
        _heat_note(report),
        *(_heat_svg(report, policy) for policy in report.policies),
        "<h2>Settings that are not the defaults</h2>",
        _settings_html(report.policies),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _summary_text(report: ReplayReport) -> str:
    demand = report.demand
    days = (demand.ends - demand.begins) / DAY_S
    cells = "1 cell" if report.fleet_cells == 1 else f"{report.fleet_cells} cells"
    ignored = f" Left out: {', '.join(report.ignored)}." if report.ignored else ""
    return (
        f"{demand.servers:,} servers, format {report.format}, in a window of {days:.2f} days. Fleet {report.fleet}: "
        f"{report.fleet_vcpus:,} vCPUs and {report.fleet_memory_mb:,} MiB in {cells}. "
        f"The peak of the demand is {demand.peak_vcpus:,} vCPUs and {demand.peak_memory_mb:,} MiB: by volume it needs "
        f"{demand.bound.hosts:,} hosts. Seed {report.seed}.{ignored}"
    )


def _table_html(headings: Sequence[str], rows: Iterable[Row], *, bound: bool = False) -> str:
    lines = ['<div class="wide"><table><thead><tr>', *(_heading_html(heading) for heading in headings), "</tr></thead><tbody>"]
    for row in rows:
        kind = ' class="bound"' if bound and row[0] == BOUND else ""
        lines.append(f"<tr{kind}>{''.join(_cell_html(value) for value in row)}</tr>")
    lines.append("</tbody></table></div>")
    return "".join(lines)


def _heading_html(text: str) -> str:
    return f'<th class="text">{text}</th>' if text in TEXTS else f"<th>{escape(text)}</th>"


def _cell_html(value: object) -> str:
    if value is None:
        return "<td>-</td>"
    kind = ' class="text"' if isinstance(value, str) else ""
    return f"<td{kind}>{escape(str(value))}</td>"


def _colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _keys_html(policies: Sequence[PolicyOutcome]) -> str:
    keys = "".join(
        f'<span class="key"><i style="background:{_colour_of(number)}"></i>{escape(outcome.policy)}</span>'
        for number, outcome in enumerate(policies)
    )
    return f"<p>{keys}</p>"


# -- drawings ----------------------------------------------------------------------------------------------------------------


def _drawings_html(report: ReplayReport) -> str:
    def lines_of(name: str, factor: float, *, dashed: bool = False) -> list[Line]:
        begins = report.demand.begins
        return [
            Line(
                _colour_of(number),
                [((sample.time - begins) / DAY_S, getattr(sample, name) * factor) for sample in policy.samples],
                dashed,
            )
            for number, policy in enumerate(report.policies)
        ]

    return "".join(
        [
            "<h2>Policies against each other</h2>",
            _bars_svg("Rejected servers", report, "rejected", report.demand.bound.rejected),
            _bars_svg("Core-days lost, %", report, "vcpu_days_lost", report.demand.bound.vcpu_days_lost),
            "<h2>Packing over time</h2>",
            _plot_svg(
                "Used vCPUs (whole lines) and memory (dashed), %",
                [*lines_of("vcpus", 100.0), *lines_of("memory", 100.0, dashed=True)],
            ),
            _plot_svg("Empty hosts", lines_of("empty_hosts", 1.0)),
            _plot_svg("Rejected servers so far", lines_of("rejected", 1.0)),
            _plot_svg(
                "Stranded vCPUs (whole lines) and memory (dashed), %",
                [*lines_of("stranded_vcpus", 100.0), *lines_of("stranded_memory", 100.0, dashed=True)],
            ),
            _plot_svg("Imbalance between hosts, %", lines_of("imbalance", 100.0)),
        ]
    )


def _plot_svg(title: str, lines: Sequence[Line]) -> str:
    """Lines over days."""
    points = [point for line in lines for point in line.points]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    top = round_top(max((y for _, y in points), default=0.0))

    def point_text(x: float, y: float) -> str:
        across = (x - first) / (last - first) if last > first else 0.5
        return f"{LEFT + across * (WIDTH - LEFT):.1f},{HEIGHT - BELOW - y / top * (HEIGHT - BELOW - 10):.1f}"

    drawn = [_axes_svg(top)]
    for tick in range(TICKS + 1):
        x = first + (last - first) * tick / TICKS
        across = LEFT + (WIDTH - LEFT) * tick / TICKS
        anchor = "start" if not tick else "end" if tick == TICKS else "middle"
        drawn.append(f'<text x="{across:.0f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{x:.3g} d</text>')
    for line in lines:
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        path = " ".join(point_text(x, y) for x, y in line.points)
        drawn.append(f'<polyline fill="none" stroke="{line.colour}" stroke-width="1.5"{dash} points="{path}"/>')
    return _figure_html(title, drawn, HEIGHT)


def round_top(highest: float) -> float:
    """The end of an axis from 0 that has round numbers at its ticks and ``highest`` on it."""
    step = (highest or 1.0) / TICKS
    unit = 10.0 ** math.floor(math.log10(step))
    return TICKS * unit * next(factor for factor in ROUND_FACTORS if factor * unit >= step * (1 - 1e-9))


def _axes_svg(top: float) -> str:
    lines = []
    for tick in range(TICKS + 1):
        y = HEIGHT - BELOW - (HEIGHT - BELOW - 10) * tick / TICKS
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * tick / TICKS:.4g}</text>')
    return "".join(lines)


def _bars_svg(title: str, report: ReplayReport, name: str, bound: float | None) -> str:
    """A bar for each policy, and the bound as a line across them."""
    values = [getattr(policy, name) for policy in report.policies]
    if any(value is None for value in values):
        return ""
    top = max(*values, bound or 0.0, 1e-9) if values else 1.0
    label, line = 200, 24
    drawn = []
    for number, (policy, value) in enumerate(zip(report.policies, values, strict=True)):
        wide = (WIDTH - label - 80) * value / top
        y = number * line
        drawn.append(f'<text x="{label - 8}" y="{y + 16}" text-anchor="end">{escape(policy.policy[:32])}</text>')
        drawn.append(f'<rect x="{label}" y="{y + 4}" width="{max(wide, 1.0):.1f}" height="16" fill="{_colour_of(number)}"/>')
        drawn.append(f'<text x="{label + wide + 6:.1f}" y="{y + 16}">{value:.6g}</text>')
    if bound:
        x = label + (WIDTH - label - 80) * bound / top
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{len(values) * line}" stroke="#000" stroke-dasharray="4 3"/>')
    return _figure_html(f"{title} (dashed: lower bound)" if bound else title, drawn, max(len(values) * line, line))


def _figure_html(title: str, drawn: Sequence[str], height: int) -> str:
    return (
        f"<h3>{escape(title)}</h3>"
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(drawn)}</svg>"
    )


def _reasons_html(policies: Sequence[PolicyOutcome]) -> str:
    rows: list[Row] = [
        (policy.policy, reason.filter, reason.reason, reason.servers, round(reason.vcpu_days, 2))
        for policy in policies
        for reason in policy.reasons
    ]
    return _table_html(("Policy", "Filter", "Reason", "Servers", "Core-days"), rows) if rows else "<p>No server was rejected.</p>"


def _heat_note(report: ReplayReport) -> str:
    line_subject = "one host" if report.hosts_per_line == 1 else f"{report.hosts_per_line} hosts"
    scale = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{number * 10} %</span>' for number, colour in enumerate(HEAT)
    )
    text = f"Time goes from left to right. A line is {line_subject}; its colour is the larger used share of vCPUs and memory."
    return f"<p>{text}</p><p>{scale}</p>"


def _heat_svg(report: ReplayReport, policy: PolicyOutcome) -> str:
    """Squares of one colour are one path: that makes the page a tenth as large."""
    lines = len(policy.samples[0].hosts)
    wide, high = WIDTH / len(policy.samples), max(2, min(16, 400 // lines))
    paths: defaultdict[int, list[str]] = defaultdict(list)
    for line in range(lines):
        begun, level = 0, _heat_level(policy.samples[0].hosts[line])
        for number in range(1, len(policy.samples) + 1):
            now = _heat_level(policy.samples[number].hosts[line]) if number < len(policy.samples) else -1
            if now != level:
                paths[level].append(f"M{begun * wide:.1f} {line * high}h{(number - begun) * wide:.1f}v{high}H{begun * wide:.1f}z")
                begun, level = number, now
    drawn = [f'<path fill="{HEAT[level]}" d="{"".join(path)}"/>' for level, path in sorted(paths.items())]
    return _figure_html(policy.policy, drawn, lines * high)


def _heat_level(per_cent: int) -> int:
    return min(max(per_cent, 0) // 10, len(HEAT) - 1)


def _settings_html(policies: Sequence[PolicyOutcome]) -> str:
    rows: list[Row] = []
    for policy in policies:
        for name, value in policy.settings.items():
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            rows.append((policy.policy, name, text))
    return _table_html(("Policy", "Option", "Value"), rows) if rows else "<p>All are the defaults.</p>"
