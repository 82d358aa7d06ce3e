"""What a tree must be: every host reaches the most capable one without a circle, along paths about as short as there
are, and links stand along its edges alone.
"""

from __future__ import annotations

from datagram_world import DEFAULTS, DatagramWorld, Weather, pair_of

View = dict[str, object]
MOVE_S = 0.4
"""Three one-way trips to the new parent, once more if the first dial came to nothing."""

ROUGH = Weather(loss=0.05, doubled=0.05, jitter=0.1, overtaken=0.05)


def crowd(seed: int, size: int, *, weather: Weather = ROUGH, multicast: bool = True) -> DatagramWorld:
    """Hosts n00, n01, ... that boot at the same moment; the capabilities of some are equal."""
    net = DatagramWorld(seed, weather=weather, multicast=multicast)
    for number in range(size):
        net.boot(f"n{number:02}", capability_of(seed, number))
    return net


def capability_of(seed: int, number: int) -> float:
    return float((seed * 31 + number * 17) % 7)


def shortcomings(net: DatagramWorld, names: list[str] | None = None) -> list[str]:
    """Why these hosts (all, if not said) are not one tree under the most capable of them, linked along its edges."""
    views = views_of(net, names)
    best = min(views, key=lambda name: (-number_in(views[name], "capability"), name))
    found = [f"{name} follows {view['root']}, not {best}" for name, view in views.items() if view["root"] != best]
    ways = [way_up(views, name) for name in views]
    found += [f"{way[0]} ends in {way[-1]}: {way}" for way in ways if way[-1] != best]
    edges = {pair_of(name, str(view["parent"])) for name, view in views.items() if view["parent"]}
    links = {pair for pair in net.links if pair[0] in views or pair[1] in views}
    found += [f"no link {edge}" for edge in sorted(edges - links)]
    found += [f"idle link {link}" for link in sorted(links - edges)]
    return found


def views_of(net: DatagramWorld, names: list[str] | None = None) -> dict[str, View]:
    return {name: net.hosts[name].overlay.view() for name in (net.hosts if names is None else names)}


def way_up(views: dict[str, View], name: str) -> list[str]:
    """The nodes from `name` to where its branch ends; a circle ends in "circle"."""
    way = [name]
    while (parent := views.get(way[-1], {}).get("parent")) is not None:
        if parent in way:
            return [*way, "circle"]
        way.append(str(parent))
    return way


def number_in(view: View, field: str) -> float:
    value = view[field]
    assert isinstance(value, int | float)
    return float(value)


def settled_after(net: DatagramWorld, horizon_s: float, names: list[str] | None = None) -> float:
    """Run for `horizon_s`; how long it took until the tree was right and stayed so.

    A node that moves to a shorter path, once all is well, drops one link and dials another: that does not count unless
    it takes longer than `MOVE_S` or leads astray.
    """
    start, settled, spell, wrong = net.now, net.now, net.now, ["never looked"]
    while net.now < start + horizon_s:
        net.run(0.02)
        problems = shortcomings(net, names)
        if not problems:
            spell = net.now
            continue
        wrong = problems
        if spell == start or net.now - spell > MOVE_S or any("no link" not in problem for problem in problems):
            settled = net.now
    assert settled < net.now, "\n".join([f"seed {net.seed}, {horizon_s} s later:", *wrong, *net.trace[-40:]])
    return settled + 0.02 - start


def detours(net: DatagramWorld) -> list[str]:
    """Nodes that a much better parent would take, by the true round trips and allowing for some noise."""
    views = views_of(net)
    true_ms = {name: true_cost_ms(net, way_up(views, name)) for name in views}
    found = []
    for name, view in views.items():
        others = [true_ms[other] + hop_ms(net, name, other) for other in views if other != name and view["parent"]]
        best = min(others, default=true_ms[name])
        threshold = max(DEFAULTS.change_s * 1000, DEFAULTS.change_ratio * true_ms[name])
        noise = 0.15 * true_ms[name]
        if true_ms[name] > best + threshold + noise:
            found.append(f"{name} takes {true_ms[name]:.1f} ms to the root; {best:.1f} would do")
    return found


def true_cost_ms(net: DatagramWorld, way: list[str]) -> float:
    return sum(hop_ms(net, way[step], way[step + 1]) for step in range(len(way) - 1))


def hop_ms(net: DatagramWorld, a: str, b: str) -> float:
    """The mean round trip, and what passing a node costs."""
    return 2000 * net.latency_between(a, b) * (1 + net.weather.jitter / 2) + DEFAULTS.hop_s * 1000


def shortest_ms(net: DatagramWorld, root: str) -> dict[str, float]:
    """The true shortest paths to the root (Bellman and Ford)."""
    cost = {name: 0.0 if name == root else float("inf") for name in net.hosts}
    for _ in cost:
        for name in cost:
            cost[name] = min([cost[name], *(cost[other] + hop_ms(net, name, other) for other in cost if other != name)])
    return cost
