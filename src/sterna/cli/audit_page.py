"""An audit as an HTML page that needs nothing else: the sum, the subscriptions, and plots as inline SVG.

Names come from strangers: they are escaped, characters that cannot be seen are written out, and no script runs.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple

from sterna.measure.plots import empty_figure

COUNTS = ("expected", "delivered", "waiting", "dropped", "lost", "uncertain", "duplicated", "reordered", "resent")
FATES = {
    "delivered": "#3182bd",
    "waiting": "#9ecae1",
    "dropped": "#e6862e",
    "lost": "#a50f15",
    "uncertain": "#737373",
}
"""Colours of them."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 92em; padding: 0 1em }
body { color: #1a1a1a; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
.kept { color: #12632b } .broken { color: #a50f15 }
.sums { display: flex; flex-wrap: wrap; gap: .6em; padding: 0; list-style: none }
.sums li { border: 1px solid #d0d4d9; border-radius: 6px; padding: .4em .9em; min-width: 6em }
.sums b { display: block; font-size: 1.3em; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .87em }
th, td { padding: .25em .5em; text-align: left; border-bottom: 1px solid #e3e6ea; vertical-align: top }
th { white-space: nowrap } td { min-width: 7em; max-width: 22em; overflow-wrap: anywhere }
th.number, td.number { min-width: 0; text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
tr.broken { background: #fdeceb; font-weight: 600 }
svg { max-width: 100%; height: auto }
"""


class AuditPage(NamedTuple):
    """The contents of the page."""

    window: str
    nodes: Sequence[str]
    silent: Sequence[str]
    sums: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    """The worst subscriptions first."""
    latencies: Sequence[tuple[float, int]]
    """(milliseconds from which a bucket goes on, messages)"""
    over_time: Sequence[Mapping[str, float]]

    def html(self) -> str:
        sums, broken = self.sums, self.sums["violations"]
        verdict = f"{broken:,} subscriptions break the contract" if broken else "The contract was kept"
        silent = f"<p>These note no deliveries: {_listed(self.silent)}.</p>" if self.silent else ""
        more = sums["subscriptions"] - len(self.rows)
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Audit: {escape(verdict)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Audit of deliveries: <span class="{"broken" if broken else "kept"}">{escape(verdict)}</span></h1>
<p>Messages: {escape(self.window)}. Nodes: {_listed(self.nodes)}. Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.</p>
{silent}
<ul class="sums">
<li><b>{sums["subscriptions"]:,}</b>subscriptions</li>
{"".join(f"<li><b>{sums[name]:,}</b>{name}</li>" for name in COUNTS)}
</ul>
{self._plots()}
<h2>Subscriptions, the worst first</h2>
<div class="wide">{_table(self.rows)}</div>
{f"<p>{more:,} more are in the sum.</p>" if more > 0 else ""}
</body>
</html>
"""

    def _plots(self) -> str:
        figure = empty_figure(11, 6.4)
        (when, took), (fates, reasons) = figure.subplots(2, 2)
        _draw_latencies(took, self.latencies)
        _draw_over_time(when, self.over_time)
        _draw_bars(fates, "Fate of the messages", {fate: self.sums[fate] for fate in FATES}, list(FATES.values()))
        dropped: dict[str, int] = {}
        for row in self.rows:
            for reason, count in row["reasons"].items():
                dropped[reason] = dropped.get(reason, 0) + count
        _draw_bars(
            reasons, "Why messages were dropped (subscriptions below)", dropped, [FATES["dropped"]] * len(dropped)
        )
        return f'<div class="wide" role="img" aria-label="Plots of the audit">{_svg(figure)}</div>'


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue().partition("<svg")[1] + out.getvalue().partition("<svg")[2]


def _draw_latencies(axes: Any, buckets: Sequence[tuple[float, int]]) -> None:
    axes.set_title("How long deliveries took (ms)", fontsize=10)
    if not buckets:
        _say_nothing(axes)
        return
    begins, counts = zip(*buckets, strict=True)
    axes.bar(begins, counts, width=[begin * 0.5 for begin in begins], align="edge", color=FATES["delivered"])
    axes.set_xscale("log")
    _finish(axes)


def _draw_over_time(axes: Any, slots: Sequence[Mapping[str, float]]) -> None:
    axes.set_title("Messages by when they came in (UTC)", fontsize=10)
    if not slots:
        _say_nothing(axes)
        return
    times = [datetime.fromtimestamp(slot["begin"], UTC).replace(tzinfo=None) for slot in slots]
    axes.step(times, [slot["expected"] for slot in slots], where="post", color="#737373", label="expected")
    for fate in ("dropped", "lost", "uncertain", "waiting"):
        counts = [slot[fate] for slot in slots]
        if any(counts):
            axes.step(times, counts, where="post", color=FATES[fate], label=fate)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", labelrotation=20)
    axes.legend(frameon=False, fontsize=8)
    _finish(axes)


def _draw_bars(axes: Any, title: str, counts: Mapping[str, int], colours: Sequence[str]) -> None:
    axes.set_title(title, fontsize=10)
    if not counts:
        _say_nothing(axes)
        return
    bars = axes.barh(list(counts), list(counts.values()), color=colours)
    axes.bar_label(bars, [f"{count:,}" for count in counts.values()], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    _finish(axes)


def _say_nothing(axes: Any) -> None:
    axes.text(0.5, 0.5, "none", ha="center", va="center", color="#737373")
    axes.set_axis_off()


def _finish(axes: Any) -> None:
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    latencies = ("p50_ms", "p99_ms", "max_ms")
    numbers = "".join(f'<th class="number">{name}</th>' for name in ("qos", *COUNTS, *latencies))
    head = f"<tr><th>client</th><th>node</th><th>filter</th>{numbers}<th>dropped because</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(map(_row, rows))}</tbody></table>"


def _row(row: Mapping[str, Any]) -> str:
    names = [_seen(row[name]) for name in ("client", "node", "filter")] if row["client"] else ["(shared)", "", ""]
    names[2] = _seen(row["filter"])
    numbers = [f"{row[name]:,}" for name in ("qos", *COUNTS)]
    took = ["" if row[name] is None else f"{row[name]:,.1f}" for name in ("p50_ms", "p99_ms", "max_ms")]
    because = ", ".join(f"{_seen(reason)} {count:,}" for reason, count in row["reasons"].items())
    cells = "".join(f"<td>{name}</td>" for name in names)
    cells += "".join(f'<td class="number">{number}</td>' for number in (*numbers, *took))
    kind = ' class="broken"' if row["violation"] else ""
    return f"<tr{kind}>{cells}<td>{because}</td></tr>"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_seen, names)) or "none"


def _seen(text: str) -> str:
    """Escaped; characters that cannot be seen, or turn the text around, as their number."""
    return escape("".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text))
