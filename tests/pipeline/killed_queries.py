"""The queries that are killed on a cluster, each as a program: killed_queries.py KIND DIRECTORY NODES BROKER MASTER.

It reads the topic `t` of the nodes from the first message on, until somebody ends it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sterna.pipeline.spark_session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def files(rows: DataFrame, directory: Path, _broker: str) -> DataStreamWriter:
    return rows.select("payload").writeStream.format("parquet").option("path", str(directory / "files"))


def each_batch(rows: DataFrame, directory: Path, _broker: str) -> DataStreamWriter:
    def keep(batch: DataFrame, number: int) -> None:
        batch.select("payload").write.mode("overwrite").parquet(str(directory / f"batches/{number}"))

    return rows.writeStream.foreachBatch(keep)


def sink(rows: DataFrame, _directory: Path, broker: str) -> DataStreamWriter:
    return rows.selectExpr("'out' as topic", "payload").writeStream.format("sterna").option("broker", broker)


KINDS = {"files": files, "foreachBatch": each_batch, "sink": sink}


def main(kind: str, directory: str, nodes: str, broker: str, master: str) -> None:
    quick = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
    spark = open_session(kind, master, quick)
    source = spark.readStream.format("sterna").options(nodes=nodes, topics="t", reader=kind, startingOffsets="earliest")
    rows = source.options(tasks="2", minPartitions="2").load()
    writer = KINDS[kind](rows, Path(directory), broker).option("checkpointLocation", f"{directory}/checkpoint")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
