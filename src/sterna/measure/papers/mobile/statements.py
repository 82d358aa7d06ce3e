"""Statements of the thesis on its figures, and aims of our own, each judged by our runs: it holds, or it does not.

The figures themselves carry no numbers that could be read; the statements are those of its text.  A difference counts
if the 95 % confidence interval of the paired difference leaves zero out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from sterna.measure.papers.mobile.statistics import Estimate, FigureOf, MobileResults
from sterna.simulation.papers.radio_run import CONFIGURATIONS

Judgement = Literal["holds", "does not hold", "not measured"]
MFT, AODV, FIRST, OURS = "mft", "aodv", "first", "sterna"
SPEED = 8.0
"""Of its Figures 4.5a to 4.8."""
SPEEDS = (2.0, 4.0, 6.0, 8.0, 10.0)
SIZES = tuple(CONFIGURATIONS)


class JudgedStatement(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    """In the thesis."""
    text: str
    judgement: Judgement
    figures: str


class NotMeasured(Exception):
    """A run that the statement needs is missing."""


@dataclass(frozen=True, slots=True)
class Statement:
    place: str
    text: str
    judge: Callable[[MobileResults], tuple[bool, str]]


def judge(results: MobileResults, statements: Sequence[Statement] | None = None) -> list[JudgedStatement]:
    return [_judged(one, results) for one in (STATEMENTS if statements is None else statements)]


def _judged(statement: Statement, results: MobileResults) -> JudgedStatement:
    try:
        holds, figures = statement.judge(results)
    except NotMeasured as missing:
        return JudgedStatement(
            place=statement.place, text=statement.text, judgement="not measured", figures=str(missing)
        )
    judgement: Judgement = "holds" if holds else "does not hold"
    return JudgedStatement(place=statement.place, text=statement.text, judgement=judgement, figures=figures)


def _mean(results: MobileResults, figure: FigureOf, protocol: str, size: str, speed: float) -> float:
    found = results.mean(figure, protocol, size, speed)
    if found is None:
        raise NotMeasured(f"{protocol} at {size}, {speed:g} m/s")
    return found.mean


def _difference(results: MobileResults, figure: FigureOf, size: str, speed: float, other: str = AODV) -> Estimate:
    found = results.difference(figure, MFT, other, size, speed)
    if found is None:
        raise NotMeasured(f"{MFT} and {other} at {size}, {speed:g} m/s")
    return found


def _list(values: Sequence[float], digits: int = 2) -> str:
    return " ".join(f"{value:,.{digits}f}" for value in values)


def _rate_by_size(results: MobileResults, protocol: str) -> list[float]:
    return [_mean(results, lambda run: run.rate, protocol, size, SPEED) for size in SIZES]


def _falls_with_size(results: MobileResults) -> tuple[bool, str]:
    mft, aodv = _rate_by_size(results, MFT), _rate_by_size(results, AODV)
    falls = [rates[-1] < rates[-2] < rates[0] for rates in (mft, aodv)]
    return all(falls), f"C2 to C32: MFT {_list(mft)}; AODV {_list(aodv)} (falls: C32 below C16 below C2)"


def _over_sizes(results: MobileResults, protocol: str, speed: float) -> float:
    return sum(_mean(results, lambda run: run.rate, protocol, size, speed) for size in SIZES) / len(SIZES)


def _resists_speed(results: MobileResults) -> tuple[bool, str]:
    changes = {
        name: _over_sizes(results, name, SPEEDS[-1]) - _over_sizes(results, name, SPEEDS[0]) for name in (MFT, AODV)
    }
    return changes[MFT] > changes[AODV], (
        f"mean rate over all sizes, 10 m/s less 2 m/s: MFT {changes[MFT]:+.3f}, AODV {changes[AODV]:+.3f}"
    )


def _improves_with_speed(results: MobileResults) -> tuple[bool, str]:
    rates = [_over_sizes(results, MFT, speed) for speed in SPEEDS]
    return rates[-1] > rates[0], f"mean over all sizes at 2 to 10 m/s: {_list(rates, 3)}"


def _better_rate_at_c32(results: MobileResults) -> tuple[bool, str]:
    found = _difference(results, lambda run: run.rate, "C32", SPEED)
    return found.is_above_zero, f"MFT less AODV: {found.mean:+.3f} ± {found.margin:.3f}"


def _aodv_delivers_more_at_c32(results: MobileResults) -> tuple[bool, str]:
    found = _difference(results, lambda run: run.delivered, "C32", SPEED)
    return found.is_below_zero, f"MFT less AODV: {found.mean:+,.0f} ± {found.margin:,.0f} messages"


def _mft_delivers_more_at_c16(results: MobileResults) -> tuple[bool, str]:
    found = [_difference(results, lambda run: run.delivered, "C16", speed) for speed in SPEEDS]
    return all(one.is_above_zero for one in found), (
        "MFT less AODV at 2 to 10 m/s: " + " ".join(f"{one.mean:+,.0f} ± {one.margin:,.0f}" for one in found)
    )


def _delivered_rises_then_drops(results: MobileResults) -> tuple[bool, str]:
    counts = [_mean(results, lambda run: run.delivered, MFT, "C16", speed) for speed in SPEEDS]
    return counts[2] > counts[0] and counts[4] < counts[2], f"MFT at 2 to 10 m/s: {_list(counts, 0)}"


def _delays_comparable(results: MobileResults) -> tuple[bool, str]:
    mft, aodv = (
        [_mean(results, lambda run: run.delay_s, protocol, size, SPEED) for size in SIZES] for protocol in (MFT, AODV)
    )
    holds = all(1 / 3 <= a / b <= 3 for a, b in zip(mft, aodv, strict=True))
    return holds, f"seconds, C2 to C32: MFT {_list(mft)}; AODV {_list(aodv)} (comparable: within a factor of 3)"


def _aodv_odd_at_c4(results: MobileResults) -> tuple[bool, str]:
    hops = {size: _mean(results, lambda run: run.hops, AODV, size, SPEED) for size in SIZES}
    return hops["C4"] == max(hops.values()), f"AODV, C2 to C32: {_list(list(hops.values()))}"


def _frames(results: MobileResults, protocol: str) -> list[float]:
    return [_mean(results, lambda run: run.frames, protocol, size, SPEED) for size in SIZES]


def _aodv_sends_less_at_c2(results: MobileResults) -> tuple[bool, str]:
    found = _difference(results, lambda run: run.frames, "C2", SPEED)
    return found.is_above_zero, f"MFT less AODV: {found.mean:+,.0f} ± {found.margin:,.0f} frames per node"


def _aodv_explodes(results: MobileResults) -> tuple[bool, str]:
    frames = _frames(results, AODV)
    return frames[-1] > 4 * frames[0], f"AODV, frames per node, C2 to C32: {_list(frames, 0)} (explodes: over 4 times)"


def _mft_is_flat(results: MobileResults) -> tuple[bool, str]:
    frames = _frames(results, MFT)
    return max(frames) < 2 * min(frames), f"MFT, frames per node, C2 to C32: {_list(frames, 0)} (flat: within 2 times)"


def _mft_sends_less_from_c4(results: MobileResults) -> tuple[bool, str]:
    found = [_difference(results, lambda run: run.frames, size, SPEED) for size in SIZES[1:]]
    return all(one.is_below_zero for one in found), (
        "MFT less AODV, frames per node, C4 to C32: " + " ".join(f"{one.mean:+,.0f}" for one in found)
    )


def _brokers_work_most(results: MobileResults) -> tuple[bool, str]:
    roles = ("broker", "subscriber", "publisher")
    by_size = [
        [_mean(results, lambda run, role=role: run.roles[role].frames, MFT, size, SPEED) for role in roles]  # type: ignore[misc]
        for size in SIZES
    ]
    holds = all(broker > max(rest) for broker, *rest in by_size)
    told = "; ".join(f"{size} {_list(frames, 0)}" for size, frames in zip(SIZES, by_size, strict=True))
    return holds, f"frames per broker, subscriber, publisher: {told}"


def _more_near_the_leader(results: MobileResults) -> tuple[bool, str]:
    ratios = [_mean(results, lambda run: run.load_near_leader, MFT, size, SPEED) for size in SIZES[1:]]
    return all(ratio > 1 for ratio in ratios), f"nearer half of the brokers to the other, C4 to C32: {_list(ratios)}"


def _fewer_than_first_approach(results: MobileResults) -> tuple[bool, str]:
    found = [_difference(results, lambda run: run.control_frames, size, SPEED, FIRST) for size in SIZES]
    return all(one.is_below_zero for one in found), (
        "MFT less first approach, control frames per node, C2 to C32: "
        + " ".join(f"{one.mean:+,.0f} ± {one.margin:,.0f}" for one in found)
    )


STATEMENTS = (
    Statement("Figure 4.4", "the delivery rate falls with the size, for both", _falls_with_size),
    Statement("Figure 4.4", "MFT's rate resists speed better than AODV's", _resists_speed),
    Statement("Figure 4.4", "MFT's rate even improves with speed", _improves_with_speed),
    Statement("4.5.3", "at C32 MFT has the better delivery rate (8 m/s)", _better_rate_at_c32),
    Statement("Figure 4.5a", "at C32 AODV delivers more messages (8 m/s)", _aodv_delivers_more_at_c32),
    Statement("Figure 4.5b", "at C16 MFT delivers more messages at every speed", _mft_delivers_more_at_c16),
    Statement("Figure 4.5b", "at C16 MFT's count rises up to 6 m/s, then drops", _delivered_rises_then_drops),
    Statement("Figure 4.6", "MFT keeps up with AODV in delay (8 m/s)", _delays_comparable),
    Statement("Figure 4.7", "AODV needs more hops at C4 than elsewhere (8 m/s)", _aodv_odd_at_c4),
    Statement("Figure 4.8", "at C2 AODV sends fewer messages per node (8 m/s)", _aodv_sends_less_at_c2),
    Statement("Figure 4.8", "AODV's messages per node explode with the size", _aodv_explodes),
    Statement("Figure 4.8", "MFT's messages per node barely change with the size", _mft_is_flat),
    Statement("Figure 4.8", "from C4 on MFT sends fewer messages per node", _mft_sends_less_from_c4),
    Statement("4.5.5", "brokers do most of MFT's work", _brokers_work_most),
    Statement("4.6", "brokers nearer to the leader have a higher load", _more_near_the_leader),
    Statement("4.6", "MFT needs fewer messages than the first approach", _fewer_than_first_approach),
)


def _ours_less(results: MobileResults, figure: FigureOf, other: str, size: str) -> Estimate:
    found = results.difference(figure, OURS, other, size, SPEED)
    if found is None:
        raise NotMeasured(f"{OURS} and {other} at {size}, {SPEED:g} m/s")
    return found


def _ours_is_still(results: MobileResults) -> tuple[bool, str]:
    changes = [_mean(results, lambda run: run.changes_a_minute, OURS, size, 0.0) for size in SIZES]
    return not any(changes), f"changes of parent per node and minute, C2 to C32: {_list(changes)}"


def _ours_delivers_a_better_rate(results: MobileResults) -> tuple[bool, str]:
    found = [_ours_less(results, lambda run: run.rate, MFT, size) for size in ("C16", "C32")]
    told = " ".join(f"{one.mean:+.3f} ± {one.margin:.3f}" for one in found)
    return all(one.is_above_zero for one in found), f"ours less MFT, C16 and C32: {told}"


def _ours_sends_less_control(results: MobileResults) -> tuple[bool, str]:
    found = [_ours_less(results, lambda run: run.control_frames, MFT, size) for size in ("C16", "C32")]
    told = " ".join(f"{one.mean:+,.0f} ± {one.margin:,.0f}" for one in found)
    return all(one.is_below_zero for one in found), f"control frames per node, ours less MFT, C16 and C32: {told}"


def _ours_delivers_more_than_aodv(results: MobileResults) -> tuple[bool, str]:
    found = [_ours_less(results, lambda run: run.delivered, AODV, size) for size in SIZES]
    told = " ".join(f"{one.mean:+,.0f} ± {one.margin:,.0f}" for one in found)
    return all(one.is_above_zero for one in found), f"messages, ours less AODV, C2 to C32: {told}"


TARGETS = (
    Statement("0 m/s", "no node changes its parent while nobody moves", _ours_is_still),
    Statement("8 m/s", "a higher delivery rate than MFT at C16 and C32", _ours_delivers_a_better_rate),
    Statement("8 m/s", "fewer control frames than MFT at C16 and C32", _ours_sends_less_control),
    Statement("8 m/s", "more messages delivered than AODV at every size", _ours_delivers_more_than_aodv),
)
"""The aims of our own overlay and strategy."""
