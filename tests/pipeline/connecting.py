"""A client of Spark Connect as a program: it reads, asks a view, streams and writes, and says what it found as JSON."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession


def main(feed: str, broker: str, directory: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    source = {"nodes": feed, "topics": "in"}
    messages = spark.read.format("sterna").options(**source).load()
    spark.sql(f"create temporary view messages using sterna options (nodes '{feed}', topics 'in')")
    stream = spark.readStream.format("sterna").options(**source, startingOffsets="earliest", reader="connect").load()
    writer = stream.select("payload").writeStream.format("parquet").option("checkpointLocation", f"{directory}/kept")
    query = writer.option("path", f"{directory}/rows").trigger(availableNow=True).start()
    query.awaitTermination(120)
    rows = messages.selectExpr("'out' as topic", "payload").write.format("sterna").mode("append")
    rows.option("broker", broker).save()
    found = {
        "client": type(spark).__module__,
        "batch": messages.count(),
        "view": spark.sql("select distinct payload from messages").count(),
        "stream": spark.read.parquet(f"{directory}/rows").count(),
        "written": spark.read.format("sterna").options(nodes=feed, topics="out").load().count(),
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
