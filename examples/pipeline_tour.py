"""A tour of the network as a Spark table, in cells: run it whole, or cell by cell in an editor that knows `# %%`.

It starts a node of its own in a temporary directory, takes about a minute, and leaves nothing behind.  What each piece
promises is said in docs/pipeline.md.
"""

# %% A node with a feed
import atexit
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import paho.mqtt.client as mqtt

from sterna.pipeline.jobs.archive import Archive, start_archive
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
    f'[feed]\nbind = "{feed}"\n[admin]\nbind = ""\n'
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


# %% Sixty measurements of three rooms
def publish(measurements: range, celsius: int = 20) -> None:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker)
    client.loop_start()
    for number in measurements:
        topic = f"plant/room-{number % 3}/climate"
        client.publish(topic, f'{{"celsius": {celsius + number % 7}, "number": {number}}}', qos=1).wait_for_publish()
    client.disconnect()
    client.loop_stop()


publish(range(60))

# %% The table, and payloads as columns
spark = open_session("tour", "local[2]")
source = {"nodes": feed}
messages = spark.read.format("sterna").options(**source).load()
climate = parse_json(messages, "celsius double, number int").select("topic", "ingress_time", "value.*")
climate.groupBy("topic").avg("celsius").orderBy("topic").show(truncate=False)

# %% A stream: the warmest it has been in each room, kept up to date as messages come in
arriving = spark.readStream.format("sterna").options(**source, topics="plant/#", startingOffsets="earliest").load()
warmest = parse_json(arriving, "celsius double, number int").selectExpr("topic", "value.celsius").groupBy("topic").max()
stream = warmest.writeStream.outputMode("complete").format("memory").queryName("warmest").start()
stream.processAllAvailable()
spark.table("warmest").orderBy("topic").show(truncate=False)

# %% An archive of what is there
archive = Archive(here / "archive")
start_archive(spark, archive, source, available_now=True).awaitTermination()
print("archived:", spark.read.parquet(str(archive.messages)).count())

# %% Results go back into the network: rooms that are warm, once each
warm = climate.groupBy("topic").max("celsius").where("`max(celsius)` > 25")
alarms = warm.selectExpr("concat('alarms/', topic) as topic", "cast(`max(celsius)` as string) as payload")
alarms.coalesce(1).sortWithinPartitions("topic").write.format("sterna").mode("append").options(
    broker=f"127.0.0.1:{broker}", publisher="warm-rooms"
).save()

# %% More messages: the stream sees them; the archive does not know them, the question still sees everything once
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

# %% The end
spark.stop()
