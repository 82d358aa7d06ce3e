"""A tour of the network as a Spark table, in cells: run it whole, or cell by cell in an editor that knows `# %%`.

It starts a node of its own in a temporary directory, and takes about a minute.  What each piece promises is said in
docs/pipeline.md.
"""

# %% A node with a feed
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import paho.mqtt.client as mqtt

from sterna.pipeline.feed_client import FeedClient
from sterna.pipeline.feed_errors import FeedError
from sterna.pipeline.jobs_archive import Archive, start_archive
from sterna.pipeline.jobs_query import query
from sterna.pipeline.parsing import parse_json
from sterna.pipeline.session import open_session


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


here = Path(tempfile.mkdtemp(prefix="sterna-tour-"))
broker, feed = free_port(), f"127.0.0.1:{free_port()}"
(here / "node.toml").write_text(
    f'[node]\nname = "tour"\ndata = "{here}/data"\n[[listener]]\nbind = "127.0.0.1:{broker}"\n'
    f'[feed]\nbind = "{feed}"\n[admin]\nbind = ""\n'
)
node = subprocess.Popen(
    [sys.executable, "-m", "sterna", "node", "--config", str(here / "node.toml")], stderr=(here / "log").open("wb")
)


def wait_for_the_feed() -> None:
    for _ in range(200):
        try:
            with FeedClient(feed, "tour") as client:
                client.status()
            return
        except FeedError:
            time.sleep(0.1)
    raise SystemExit((here / "log").read_text())


wait_for_the_feed()


# %% Sixty measurements of three rooms
def publish(measurements: range) -> None:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker)
    client.loop_start()
    for number in measurements:
        topic = f"plant/room-{number % 3}/climate"
        client.publish(topic, f'{{"celsius": {20 + number % 7}, "number": {number}}}', qos=1).wait_for_publish()
    client.disconnect()
    client.loop_stop()


publish(range(60))

# %% The table, and payloads as columns
spark = open_session("tour", "local[2]")
source = {"nodes": feed}
messages = spark.read.format("sterna").options(**source).load()
climate = parse_json(messages, "celsius double, number int").select("topic", "ingress_time", "value.*")
climate.groupBy("topic").avg("celsius").orderBy("topic").show(truncate=False)

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

# %% More messages: the archive does not know them, the question still sees everything once
publish(range(60, 80))
numbers = query(
    spark,
    "select count(*) as n, count(distinct payload) as different from messages where first_level = 'plant'",
    source,
    archive.directory,
).collect()[0]
print("each message once:", (numbers.n, numbers.different) == (80, 80))

# %% The end
spark.stop()
node.terminate()
node.wait(20)
