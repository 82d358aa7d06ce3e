"""`sterna demo`: nodes, real clients, Spark, kill -9, a client that is moved, a Mosquitto, a crowd, and what was lost.

Everything here is what a user could type; the demo types it, shows it, and cleans up after itself.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import paho.mqtt.client as paho
import typer
from rich.console import Console

from sterna.cli.demo_crowd import crowd
from sterna.cli.demo_live import WatchedDemoNode, live
from sterna.cli.demo_mosquitto import DemoMosquitto, find_mosquitto
from sterna.cli.demo_nodes import PATIENCE_S, DemoNode, follow, joined, wait_until
from sterna.cli.demo_spark import SparkCounts
from sterna.cli.demo_town import live_town
from sterna.vocabulary.errors import SternaError

SOCKET_ROOT_BYTES = 40

app = typer.Typer()
console = Console(highlight=False, soft_wrap=True)

MESSAGES = 2_000
PACE_S = 0.002
"""Between two messages: long enough to watch."""
TRAVELLED = 1_000
"""Messages at each QoS while a client is moved."""
WAITING = 1_000
"""Messages for a broker of another make while it is down."""
SPARK_PATIENCE_S = 150.0
SPARK_MOMENT_S = 4.0


@app.command("demo")
def demo(
    spark_patience: Annotated[
        float, typer.Option("--spark-patience", min=0.0, help="Seconds to wait for Spark before going on without it.")
    ] = SPARK_PATIENCE_S,
    is_town: Annotated[
        bool,
        typer.Option("--town", help="Only a larger network to watch, until Ctrl-C: five nodes, 200 clients that roam."),
    ] = False,
) -> None:
    """Start three nodes, talk to them with real clients, watch in Spark, kill two, move a client, join a Mosquitto.

    Then a crowd appears far from a node, gets one of its own, and leaves (as root only).  At a terminal the network
    lives on until Ctrl-C, to be watched on its dashboard."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _leave)
    if is_town:
        with tempfile.TemporaryDirectory(prefix="sterna-town-", dir=_short_place()) as directory:
            live_town(Path(directory), console)
        return
    with tempfile.TemporaryDirectory(prefix="sterna-demo-") as directory:
        north = DemoNode(Path(directory), "north", is_door=True)
        middle = DemoNode(Path(directory), "middle", north)
        south = DemoNode(Path(directory), "south", middle)
        nodes = (north, middle, south)
        with ExitStack() as running:
            for node in nodes:
                running.callback(node.stop)
                node.start()
                if node is north:
                    node.wait_for_page()
                    up_s = time.monotonic() - began
            spark = SparkCounts(",".join(node.feed for node in nodes), Path(directory), console, spark_patience)
            running.callback(spark.stop)
            ports = ", ".join(f"{node.name} on port {node.port}" for node in nodes)
            console.print(f"[bold]Three nodes in a row, one broker:[/] {ports}; their journals are synced to disk.")
            console.print(f"[bold]Watch them:[/] open [bold]{north.dashboard}[/] in a browser.")
            console.print(f"   The page was up {up_s:.1f} s after the start.\n")
            _several_clients(north, south)
            _computed(north, south)
            _table(spark, north)
            _nothing_lost(north, middle, south, spark)
            _moved(north, middle, south)
            _joined_by_mosquitto(running, Path(directory), north, south)
            _network(south)
            if sys.stdout.isatty():
                _ending()
                spark.hush()
                _live(nodes)
                return
    _ending()


def _ending() -> None:
    with tempfile.TemporaryDirectory(prefix="sterna-demo-", dir=_short_place()) as directory:
        crowd(Path(directory), console, 8)
    console.print("\n[bold]Where to look next[/]")
    console.print("  .venv/bin/sterna node                       a broker on 127.0.0.1:1883, data in ./sterna-data")
    console.print("  .venv/bin/sterna sub -t 'plant/#' -v        and .venv/bin/sterna pub -t plant/1 -m hello")
    console.print("  .venv/bin/sterna simulate chaos --seed 1    a network of nodes in a made-up world of faults")
    console.print("  .venv/bin/sterna bench brokers --quick      how it does beside Mosquitto")
    console.print("  .venv/bin/python examples/pipeline_tour.py  the network as a Spark table, step by step")
    console.print("  README.md, ARCHITECTURE.md, docs/           what it is, how it works, how to configure it")


def _leave(number: int, _frame: FrameType | None) -> None:
    """Being told to end is a way out like any other: what was started goes first."""
    raise SystemExit(128 + number)


def _live(nodes: tuple[DemoNode, ...]) -> None:
    """Until Ctrl-C."""

    @contextmanager
    def join(name: str, node: WatchedDemoNode) -> Iterator[paho.Client]:
        with joined(name, node, []) as client:
            follow(client)
            yield client

    with suppress(KeyboardInterrupt):
        live(nodes, join, console, lambda: False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough: everything is on its way out
    console.print("\nstopping")


def _several_clients(north: DemoNode, south: DemoNode) -> None:
    """Clients of three makes see the same message, whichever node they are connected to."""
    console.print("[bold]1. Clients of several makes, both versions of MQTT, at different nodes[/]")
    received: list[str] = []
    with joined("demo-paho", south, received) as client:
        wait_until(lambda: bool(client.is_connected()), "paho to connect")
        client.subscribe("plant/#", qos=1)
        subscriber = _mosquitto_sub(north)
        publish = [sys.executable, "-m", "sterna", "pub", "-p", str(north.port), "-t", "plant/oven/temperature"]
        console.print("   $ sterna pub -t plant/oven/temperature -m 181.5 -q 1 -r               (at north)")
        subprocess.run([*publish, "-m", "181.5", "-q", "1", "-r"], check=True)
        wait_until(lambda: len(received) >= 1, "paho to receive")
        console.print(f"   paho-mqtt (MQTT 5) received      {received[0]}   (at south)")
        if subscriber is not None:
            output, _ = subscriber.communicate(timeout=PATIENCE_S)
            console.print(f"   mosquitto_sub (3.1.1) received   {output.strip()}   (at north)")
    console.print()


def _computed(north: DemoNode, south: DemoNode) -> None:
    """A client of one node subscribes to a computation over what is published at another."""
    console.print("[bold]2. A subscription that computes[/]")
    console.print("   $ sterna sub -t '$AVG/room/+/temp' -v                                 (at south)")
    results: list[str] = []
    with joined("demo-watcher", south, results) as watcher, joined("demo-sensor", north, []) as sensor:
        granted: list[int] = []
        watcher.on_subscribe = lambda _client, _data, packet_id, _reasons, _properties: granted.append(packet_id)
        wait_until(lambda: bool(watcher.is_connected() and sensor.is_connected()), "both to connect")
        watcher.subscribe("$AVG/room/+/temp", qos=1)
        wait_until(lambda: bool(granted), "the subscription to be known everywhere")
        for number, (room, degrees) in enumerate((("1", 20), ("2", 30), ("1", 24)), 1):
            sensor.publish(f"room/{room}/temp", str(degrees), qos=1)
            wait_until(lambda number=number: len(results) >= number, "the average")
            console.print(f"   room/{room}/temp {degrees}   (at north)   gives   {results[-1]}")
    console.print()


def _mosquitto_sub(node: DemoNode) -> subprocess.Popen[str] | None:
    program = shutil.which("mosquitto_sub")
    if program is None:
        return None
    # The message is retained, so it does not matter who is first.
    words = [program, "-p", str(node.port), "-t", "plant/#", "-C", "1", "-v", "-W", str(int(PATIENCE_S))]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def _table(spark: SparkCounts, seed: DemoNode) -> None:
    console.print("[bold]3. Every message is a row of a table in Spark, as soon as it is published[/]")
    console.print(f'   spark.readStream.format("sterna").option("nodes", "{seed.feed},...").load()')
    console.print('        .groupBy("topic").count().writeStream.outputMode("complete") ...   (starts in seconds)')
    deadline = time.monotonic() + spark.patience_s
    while spark.is_running and not spark.counts and time.monotonic() < deadline:
        time.sleep(0.05)
    if not spark.counts:
        why = f"nothing was counted in {spark.patience_s:.0f} s" if spark.is_running else spark.last_words()
        console.print(f"   going on without Spark: {why}", markup=False)
    console.print()


def _nothing_lost(north: DemoNode, middle: DemoNode, south: DemoNode, spark: SparkCounts) -> None:
    console.print(
        f"[bold]4. {MESSAGES:,} messages at QoS 1 and {MESSAGES:,} at QoS 2 from north to south, "
        "and a kill -9 of south and of the node between[/]"
    )
    received: list[str] = []
    with joined("demo-subscriber", south, received) as subscriber:
        wait_until(lambda: bool(subscriber.is_connected()), "the subscriber to connect")
        granted: list[int] = []
        subscriber.on_subscribe = lambda _client, _data, packet_id, _reasons, _properties: granted.append(packet_id)
        subscriber.subscribe([("ledger/1", 1), ("ledger/2", 2)])
        wait_until(lambda: bool(granted), "the subscription to be known everywhere")
        _publish_through_crashes(north, middle, south, spark)
        wait_until(lambda: len(set(received)) == 2 * MESSAGES, "all messages to arrive", lambda: len(set(received)))
    _wait_for_spark(spark, 2 * MESSAGES)
    for qos in (1, 2):
        mine = [text for text in received if text.startswith(f"ledger/{qos} ")]
        lost, repeated = MESSAGES - len(set(mine)), len(mine) - len(set(mine))
        line = f"   QoS {qos}: {len(set(mine)):,} of {MESSAGES:,} arrived, {lost} lost, {repeated} repeated"
        console.print(line + (f"; Spark counted {_in_spark(spark, qos):,}" if spark.counts else ""))
    if spark.counts and not spark.is_running:
        console.print(f"   Spark ended before its time: {spark.last_words()}", markup=False)
    console.print()


def _moved(north: DemoNode, middle: DemoNode, south: DemoNode) -> None:
    """A client is sent from node to node while messages come."""
    console.print(
        f"[bold]5. A client is moved to another node and back while {TRAVELLED:,} messages come at each QoS[/]"
    )
    received: list[str] = []
    journey: list[str] = []
    by_port = {node.port: node.name for node in (north, middle, south)}
    with joined("demo-traveller", south, received) as traveller, joined("demo-publisher", middle, []) as publisher:
        follow(traveller, lambda port: journey.append(by_port[port]))
        wait_until(lambda: bool(traveller.is_connected() and publisher.is_connected()), "both to connect")
        granted: list[int] = []
        traveller.on_subscribe = lambda _client, _data, packet_id, _reasons, _properties: granted.append(packet_id)
        traveller.subscribe([("journey/1", 1), ("journey/2", 2)])
        wait_until(lambda: bool(granted), "the subscription to be known everywhere")
        half = TRAVELLED // 2
        for target, numbers in ((north, range(half)), (south, range(half, TRAVELLED))):
            _publish(publisher, "journey", range(numbers.start, numbers.start + half // 2))
            console.print(f"   $ sterna move demo-traveller --to {target.name}")
            command = [sys.executable, "-m", "sterna", "move", "demo-traveller", "--to", target.name]
            admin = f"127.0.0.1:{middle.admin_port}"
            moving = subprocess.Popen([*command, "--admin", admin], stdout=subprocess.DEVNULL)
            _publish(publisher, "journey", range(numbers.start + half // 2, numbers.stop))
            if moving.wait(PATIENCE_S):
                raise SternaError("the client could not be moved")
            there = [target.name]
            wait_until(lambda there=there: journey[-1:] == there and traveller.is_connected(), "the client to arrive")
        wait_until(lambda: len(set(received)) == 2 * TRAVELLED, "all messages to arrive", lambda: len(set(received)))
    console.print(f"   sent on by Server References: {' -> '.join(('south', *journey))}")
    for qos in (1, 2):
        mine = [text for text in received if text.startswith(f"journey/{qos} ")]
        lost, repeated = TRAVELLED - len(set(mine)), len(mine) - len(set(mine))
        console.print(
            f"   QoS {qos}: {TRAVELLED:,} sent, {len(set(mine)):,} received, {lost} lost, {repeated} duplicated"
        )
    console.print()


def _joined_by_mosquitto(running: ExitStack, directory: Path, north: DemoNode, south: DemoNode) -> None:
    """A broker of another make becomes part of the network as it is, and is restarted."""
    program = find_mosquitto()
    if program is None:
        console.print("[bold]6. A broker of another make joins[/]\n   left out: Mosquitto is not installed\n")
        return
    console.print(f"[bold]6. A Mosquitto joins the network, and is restarted while {WAITING:,} messages come for it[/]")
    mosquitto = DemoMosquitto(program, directory)
    running.callback(mosquitto.stop)
    mosquitto.start()
    table = f'[interworking]\nbroker = "{mosquitto.address}"\nfence_s = 1.0\npause_max_s = 1.0\n'
    east = DemoNode(directory, "east", south, table)
    running.callback(east.stop)
    console.print("   $ sterna interwork --broker MOSQUITTO                                 (as node east)")
    east.start()
    wait_until(lambda: _is_attached(east), "east to be attached")
    there: list[str] = []
    here: list[str] = []
    with joined("demo-here", north, here) as ours, joined("demo-there", mosquitto, there) as theirs:
        wait_until(lambda: bool(ours.is_connected() and theirs.is_connected()), "both to connect")
        for client in (ours, theirs):
            granted: list[int] = []
            client.on_subscribe = lambda _client, _data, packet_id, _reasons, _properties, to=granted: to.append(
                packet_id
            )
            client.subscribe("joined/#", 2)
            wait_until(lambda granted=granted: bool(granted), "the subscription")
        ours.publish("joined/north", "hello", 2)
        theirs.publish("joined/mosquitto", "hello", 2)
        wait_until(lambda: len(here) >= 2 and len(there) >= 2, "one message each way")
        console.print(f"   a client of north has            {', '.join(sorted(here))}")
        console.print(f"   a client of Mosquitto has        {', '.join(sorted(there))}")
        mosquitto.stop()
        for number in range(WAITING):
            ours.publish("joined/later", f"{number}", 2)
        mosquitto.start()
        wait_until(lambda: len(set(there)) >= WAITING + 2, "what waited to arrive", lambda: len(set(there)))
    found = _interworking(east)
    repeated = len(there) - len(set(there))
    console.print(f"   after the restart: {WAITING:,} of {WAITING:,} arrived there, {repeated} repeated")
    shown = {name: found[name] for name in ("taken", "injected", "connections", "sessions_lost", "storms")}
    console.print(f"   east has counted   {', '.join(f'{name} {count}' for name, count in shown.items())}\n")


def _is_attached(node: DemoNode) -> bool:
    try:
        return bool(_interworking(node).get("state") == "attached")
    except OSError:
        return False  # its admin port opens after its listeners


def _interworking(node: DemoNode) -> dict[str, Any]:
    address = f"http://127.0.0.1:{node.admin_port}/interworking"
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _in_spark(spark: SparkCounts, *qualities: int) -> int:
    return sum(spark.counts.get(f"ledger/{qos}", 0) for qos in qualities or (1, 2))


def _wait_for_spark(spark: SparkCounts, messages: int) -> None:
    """Until it has counted so many; without Spark the demo goes on at once."""
    deadline = time.monotonic() + spark.patience_s
    while spark.counts and spark.is_running and _in_spark(spark) < messages:
        if time.monotonic() > deadline:
            counted = f"{_in_spark(spark):,} of {messages:,}"
            raise SternaError(f"waited {spark.patience_s:.0f} s for Spark, which has counted {counted}")
        time.sleep(0.05)


def _publish_through_crashes(north: DemoNode, middle: DemoNode, south: DemoNode, spark: SparkCounts) -> None:
    third = MESSAGES // 3
    # The publisher's own node stays up: paho forgets, when it fails to reconnect twice, which QoS 2 messages it had
    # released already, and publishes them once more as new ones.
    with joined("demo-publisher", north, []) as publisher:
        wait_until(lambda: bool(publisher.is_connected()), "the publisher to connect")
        acknowledged: list[int] = []
        publisher.on_publish = lambda _client, _data, packet_id, _reason, _properties: acknowledged.append(packet_id)
        _publish(publisher, "ledger", range(third))
        _wait_for_spark(spark, 1)
        for node in (middle, south):
            node.kill()
        in_spark = _in_spark(spark)
        console.print(f"   killed both when {len(acknowledged):,} were acknowledged; publishing goes on")
        _publish(publisher, "ledger", range(third, 2 * third))
        # A batch of Spark's that was to read from a node that died waits until the node is back.
        deadline = time.monotonic() + SPARK_MOMENT_S
        while spark.counts and _in_spark(spark) == in_spark and time.monotonic() < deadline:
            time.sleep(0.05)
        console.print(f"   starting both again, with {len(acknowledged):,} acknowledged")
        for node in (middle, south):
            node.launch()
        _publish(publisher, "ledger", range(2 * third, MESSAGES))
        for node in (middle, south):
            node.wait()
        wait_until(lambda: len(acknowledged) == 2 * MESSAGES, "every acknowledgement", lambda: len(acknowledged))
    console.print("   every message was acknowledged to its publisher")


def _publish(publisher: paho.Client, topic: str, numbers: range) -> None:
    for number in numbers:
        for qos in (1, 2):
            publisher.publish(f"{topic}/{qos}", f"entry {number}", qos)
        time.sleep(PACE_S)


def _network(node: DemoNode) -> None:
    address = f"127.0.0.1:{node.admin_port}"
    console.print(f"[bold]7. The network, as {node.name} sees it[/]   $ sterna network --admin {address}")
    subprocess.run([sys.executable, "-m", "sterna", "network", "--admin", address], check=True)


def _short_place() -> str | None:
    """A directory below which Unix sockets can be named: their paths have 107 bytes at most."""
    return "/tmp" if len(tempfile.gettempdir()) > SOCKET_ROOT_BYTES else None
