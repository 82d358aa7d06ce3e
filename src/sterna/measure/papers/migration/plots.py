"""The paper's plots of a move (its section 6.3.3), as PNG files, and those over all moves (`overviews`).

Of every experiment and topic the last run is drawn (TCP gets used to long ways), clipped to two seconds
around the move.  Red squares are messages that came through the source, blue diamonds those through the target; behind
a gateway nobody can tell, and the moment of the move divides them.  Grey triangles were published at a third node.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.measure.papers.migration.document import MigrationDocument
from sterna.measure.papers.migration.overviews import draw_durations, draw_latency, draw_model, draw_states
from sterna.measure.papers.migration.records import read
from sterna.measure.plots import empty_figure

AROUND_S = 2.0
SOURCE, TARGET, BOTH = "#c0392b", "#1f5fa8", "#737373"
WAY, MOMENT, ARRIVED = "#e6862e", "#2e8b57", "#7d3c98"
MARKS = {"source": ("s", SOURCE), "target": ("D", TARGET), "third": ("^", BOTH)}
ROWS = ("published at source or third", "through source", "received", "through target", "published at target")


@dataclass(frozen=True, slots=True)
class DeliveryTrip:
    """One delivery of one message; seconds from the beginning of the move."""

    number: int
    """Of the message, in the order of departure."""
    sent: float
    received: float | None
    at: str
    """Where it was published,"""
    via: str
    """and through whom it came."""


@dataclass(frozen=True, slots=True)
class Story:
    title: str
    trips: list[DeliveryTrip]
    finished: float
    arrived: float
    repeated: int
    lost: int


def draw(told: MigrationDocument, records: Path, directory: Path) -> list[Path]:
    """All pictures into the directory; their names."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = [directory / "model.png"]
    draw_model(drawn[0])
    if not told.rows:
        return drawn
    drawn.append(directory / "durations.png")
    draw_durations(told, drawn[-1])
    if told.latency:
        drawn.append(directory / "latency.png")
        draw_latency(told, drawn[-1])
    tables = {name: read(records, name) for name in ("messages", "deliveries", "moves", "states")}
    for name in dict.fromkeys(row.experiment for row in told.rows):
        run = [one for one in tables["moves"] if (one["experiment"], one["run"]) == (name, told.runs)]
        if draw_states(tables["states"], run, name, directory / f"{name}-states.png"):
            drawn.append(directory / f"{name}-states.png")
    for row in told.rows:
        client = f"{row.experiment} {told.runs} {told.kinds[0]}"
        story = tell(tables, client, f"{row.experiment}/{told.runs}/{row.topic}", f"QoS {row.qos}")
        if story is not None:
            drawn.append(directory / f"{row.experiment}-{row.topic}.png")
            draw_story(story, drawn[-1])
    return drawn


def tell(tables: dict[str, list[dict[str, Any]]], client: str, topic: str, qos: str) -> Story | None:
    """The messages of one client on one topic; None if it was not moved."""
    move = next((one for one in tables["moves"] if one["client"] == client), None)
    if move is None or move["arrived"] is None:
        return None
    begun = move["ordered"]
    sent = sorted((one for one in tables["messages"] if one["topic"] == topic), key=lambda one: one["ingress_time"])
    heard: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in tables["deliveries"]:
        if one["client"] == client and one["topic"] == topic:
            heard.setdefault((one["origin"], one["sequence"]), []).append(one)
    trips, lost = [], 0
    for number, one in enumerate(sent, start=1):
        times = heard.get((one["origin"], one["sequence"]), [])
        lost += not times
        at, departed = one["origin"].rpartition("@")[2], one["ingress_time"] - begun
        trips += [DeliveryTrip(number, departed, each["at"] - begun, at, each["via"]) for each in times]
        if not times:
            trips.append(DeliveryTrip(number, departed, None, at, ""))
    arrived = move["arrived"] - begun
    finished = (move["finished"] or move["arrived"]) - begun
    shown = [trip for trip in trips if _is_near(trip, max(arrived, finished))]
    repeated = len(trips) - len(sent)
    return Story(f"{client}, {topic}, {qos}", shown, finished, arrived, repeated, lost)


def _is_near(trip: DeliveryTrip, end: float) -> bool:
    moment = trip.sent if trip.received is None else trip.received
    return moment >= -AROUND_S and trip.sent <= end + AROUND_S


def draw_story(story: Story, file: Path) -> None:
    figure = empty_figure(13, 15)
    top = figure.add_gridspec(5, 2, height_ratios=(1, 1.5, 1.2, 1.2, 1.2))
    _verification(figure.add_subplot(top[0, :]), story)
    _process(figure.add_subplot(top[1, :]), story)
    departure, sequence = figure.add_subplot(top[2, 0]), figure.add_subplot(top[2, 1])
    _scatter(departure, story, "departure, s", "arrival, s", lambda trip: trip.sent, lambda trip: trip.received)
    _scatter(sequence, story, "message", "arrival, s", lambda trip: trip.number, lambda trip: trip.received)
    for axes in (departure, sequence):
        _moments(axes.axhline, story)
    by_arrival, by_number = figure.add_subplot(top[3, 0]), figure.add_subplot(top[3, 1])
    _scatter(by_arrival, story, "arrival, s", "latency, ms", lambda trip: trip.received, _latency)
    _moments(by_arrival.axvline, story)
    _scatter(by_number, story, "message", "latency, ms", lambda trip: trip.number, _latency)
    _distribution(figure.add_subplot(top[4, :]), story)
    figure.suptitle(f"{story.title}: {story.lost} lost, {story.repeated} duplicated")
    figure.savefig(file)


def _latency(trip: DeliveryTrip) -> float:
    assert trip.received is not None
    return 1000 * (trip.received - trip.sent)


def _moments(line: Any, story: Story) -> None:
    """Green: the move begins and ends at the source.  Violet: the client is at the target."""
    for moment, colour in ((0.0, MOMENT), (story.finished, MOMENT), (story.arrived, ARRIVED)):
        line(moment, color=colour, linewidth=1, zorder=0)


def _rows(axes: Any) -> None:
    axes.set_yticks(range(len(ROWS)), ROWS[::-1])
    axes.set_ylim(-0.6, len(ROWS) - 0.4)
    axes.spines[["top", "right"]].set_visible(False)


def _dot(axes: Any, x: float, row: int, colour: str, mark: str) -> None:
    axes.plot([x], [len(ROWS) - 1 - row], mark, color=colour, markersize=4)


def _verification(axes: Any, story: Story) -> None:
    for trip in story.trips:
        row = 4 if trip.at == "target" else 0
        _dot(axes, trip.number, row, *MARKS[trip.at][::-1])
        if trip.received is not None:
            mark, colour = MARKS[trip.via]
            _dot(axes, trip.number, 1 if trip.via == "source" else 3, colour, mark)
            _dot(axes, trip.number, 2, colour, mark)
    _rows(axes)
    axes.set_xlabel("message, in the order of departure")
    axes.set_title("Verification: each message, where it was published and how it came", fontsize=10)


def _process(axes: Any, story: Story) -> None:
    for trip in story.trips:
        start = 4 if trip.at == "target" else 0
        _dot(axes, trip.sent, start, *MARKS[trip.at][::-1])
        if trip.received is None:
            continue
        mark, colour = MARKS[trip.via]
        row = 1 if trip.via == "source" else 3
        top = len(ROWS) - 1
        axes.plot([trip.sent, trip.received], [top - start, top - row], color=WAY, linewidth=0.5, zorder=0)
        _dot(axes, trip.received, row, colour, mark)
        _dot(axes, trip.received, 2, colour, mark)
    _moments(axes.axvline, story)
    _rows(axes)
    axes.set_xlabel("seconds from the beginning of the move")
    axes.set_title(
        "Process: departures and arrivals (green: the move begins, the source is done; violet: the client is at the "
        "target)",
        fontsize=10,
    )


def _scatter(axes: Any, story: Story, x_name: str, y_name: str, x: Any, y: Any) -> None:
    for via, (mark, colour) in MARKS.items():
        found = [trip for trip in story.trips if trip.received is not None and trip.via == via]
        axes.plot([x(trip) for trip in found], [y(trip) for trip in found], mark, color=colour, markersize=4)
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    axes.spines[["top", "right"]].set_visible(False)


def _distribution(axes: Any, story: Story) -> None:
    for via, (_, colour) in MARKS.items():
        found = sorted(_latency(trip) for trip in story.trips if trip.received is not None and trip.via == via)
        if found:
            steps = [(place + 1) / len(found) for place in range(len(found))]
            axes.step(found, steps, where="post", color=colour, label=f"through the {via}")
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("share of messages")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Empirical distribution of latencies", fontsize=10)
