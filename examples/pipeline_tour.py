"""A tour of the network as a Spark table, in cells: run it whole, or cell by cell in an editor that knows `# %%`.

It starts a node of its own in a temporary directory, takes about a minute, and leaves nothing behind.  `scripts/tour`
runs it and writes docs/tour.md, with all that it prints and draws.
"""

# %% A node with a feed
# The tour has a node of its own, which notes what becomes of messages (`deliveries`), so that they can be audited.
import atexit
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import paho.mqtt.client as mqtt

from sterna.pipeline.jobs.archive import Archive, start_archive
from sterna.pipeline.jobs.audit import Audit, audit_network
from sterna.pipeline.jobs.query import query
from sterna.pipeline.parsing import parse_json
from sterna.pipeline.spark_session import open_session


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


here = Path(tempfile.mkdtemp(prefix="sterna-tour-"))
broker, feed_port = free_port(), free_port()
feed = f"127.0.0.1:{feed_port}"
(here / "node.toml").write_text(
    f'[node]\nname = "tour"\ndata = "{here}/data"\n[[listener]]\nbind = "127.0.0.1:{broker}"\n'
    f'[feed]\nbind = "{feed}"\n[admin]\nbind = ""\n[journal]\ndeliveries = true\n'
)
node = subprocess.Popen(
    [sys.executable, "-m", "sterna", "node", "--config", str(here / "node.toml")], stderr=(here / "log").open("wb")
)


@atexit.register
def clear_up() -> None:
    node.terminate()
    node.wait(20)
    shutil.rmtree(here)


def answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


while not (answers(broker) and answers(feed_port)):
    if node.poll() is not None:
        sys.exit((here / "log").read_text())
    time.sleep(0.1)


# %% Somebody who listens
# A client with a name and a session that lasts.
display = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "display", clean_session=False)
display.on_connect = lambda client, *_: client.subscribe("plant/room-0/#", 1)
subscribed: list[int] = []
display.on_subscribe = lambda *_: subscribed.append(1)
display.connect("127.0.0.1", broker)
display.loop_start()
while not subscribed:
    time.sleep(0.1)


# %% Sixty measurements of three rooms
def publish(measurements: range, celsius: int = 20) -> None:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "thermometers")
    client.connect("127.0.0.1", broker)
    client.loop_start()
    for number in measurements:
        topic = f"plant/room-{number % 3}/climate"
        client.publish(topic, f'{{"celsius": {celsius + number % 7}, "number": {number}}}', qos=1).wait_for_publish()
    client.disconnect()
    client.loop_stop()


publish(range(60))

# %% The table
# Every message is a row; [the pipeline's page](pipeline.md#reading) explains the columns.
spark = open_session("tour", "local[2]")
source = {"nodes": feed}
messages = spark.read.format("sterna").options(**source).load()
messages.printSchema()
messages.select("topic", "qos", "publisher", "origin", "sequence").orderBy("offset").show(3, truncate=False)

# %% Payloads as columns
climate = parse_json(messages, "celsius double, number int").select("topic", "ingress_time", "value.*")
climate.groupBy("topic").avg("celsius").orderBy("topic").show(truncate=False)

# %% The measurements as a picture
# Spark's tables become those of pandas, and everything that draws these draws the network.
figure, panel = plt.subplots(figsize=(7, 3))
for topic, rows in climate.orderBy("number").toPandas().groupby("topic"):
    panel.step(rows["number"], rows["celsius"], where="post", label=str(topic))
panel.set_xlabel("measurement")
panel.set_ylabel("°C")
panel.set_ylim(19, 29)
panel.legend(fontsize=8, loc="upper center", ncols=3)
figure.tight_layout()

# %% A stream
# The warmest it has been in each room, kept up to date as messages come in.
arriving = spark.readStream.format("sterna").options(**source, topics="plant/#", startingOffsets="earliest").load()
warmest = parse_json(arriving, "celsius double, number int").selectExpr("topic", "value.celsius").groupBy("topic").max()
stream = warmest.writeStream.outputMode("complete").format("memory").queryName("warmest").start()
stream.processAllAvailable()
spark.table("warmest").orderBy("topic").show(truncate=False)

# %% An archive of what is there
archive = Archive(here / "archive")
start_archive(spark, archive, source, available_now=True).awaitTermination()
archive.settle()
print("archived:", spark.read.parquet(str(archive.messages)).count())

# %% Results go back into the network
# Rooms that are warm, once each: tasks may be tried again, and the node takes each row once.
warm = climate.groupBy("topic").max("celsius").where("`max(celsius)` > 25")
alarms = warm.selectExpr("concat('alarms/', topic) as topic", "cast(`max(celsius)` as string) as payload")
alarms.coalesce(1).sortWithinPartitions("topic").write.format("sterna").mode("append").options(
    broker=f"127.0.0.1:{broker}", publisher="warm-rooms"
).save()
spark.read.format("sterna").options(**source, topics="alarms/#").load().selectExpr(
    "topic", "cast(payload as string) as payload", "publisher"
).orderBy("topic").show(truncate=False)

# %% More messages
# The stream sees them; the archive does not know them, and a question still sees everything once.
publish(range(60, 80), celsius=30)
stream.processAllAvailable()
spark.table("warmest").orderBy("topic").show(truncate=False)
stream.stop()
numbers = query(
    spark,
    "select count(*) as n, count(distinct payload) as different from messages where first_level = 'plant'",
    source,
    archive.directory,
).collect()[0]
print("each message once:", (numbers.n, numbers.different) == (80, 80))


# %% Was everything delivered?
# The node notes what became of each message within a second or so, and the audit holds that against the journal.
def audited() -> Audit:
    while True:
        found = audit_network(spark, source)
        if found.table.where("client = 'display'").agg({"delivered": "sum"}).collect()[0][0] == 27:
            return found


audit = audited()
audit.table.where("client = 'display'").select("client", "filter", "qos", "expected", "delivered", "lost").show()

# %% How long it took
# From when the node took a message in to when the client had it.
took = audit.table.where("client = 'display'").select("p50_ms", "p99_ms", "max_ms").toPandas()
figure, panel = plt.subplots(figsize=(4, 3))
panel.bar(["p50", "p99", "longest"], took.iloc[0])
panel.set_ylabel("ms from node to display")
figure.tight_layout()

# %% The end
display.disconnect()
display.loop_stop()
spark.stop()
