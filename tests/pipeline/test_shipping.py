"""An archive of Sterna is all that Spark's machines need: no installation, whichever way a query uses the network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from sterna.pipeline.errors import PipelineError
from sterna.pipeline.shipping import make_archive

from .feeding import FeedingNode
from .page import snippets

SOON_S = 480
#: PySpark and what it asks for; `six` and `pytz` are pandas' own.
INSTALLED = (
    "pyspark",
    "py4j",
    "pyarrow",
    "pyarrow.libs",
    "pandas",
    "numpy",
    "numpy.libs",
    "dateutil",
    "pytz",
    "tzdata",
)
APPLICATION = """
import sys
from pyspark.sql import SparkSession

feed, broker, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
table = spark.read.format("sterna").option("nodes", feed)
print("read", table.option("topics", "in/#").load().count())
rows = spark.readStream.format("sterna").options(nodes=feed, topics="in/#", startingOffsets="earliest").load()
out = rows.selectExpr("concat('out/', topic) as topic", "payload").writeStream.format("sterna").option("broker", broker)
out.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
print("written", table.option("topics", "out/#").load().count())
"""


def bare_python(directory: Path) -> Path:
    """An interpreter that has PySpark and not Sterna."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=120)
    (ours,) = {Path(pyspark.__file__).parent.parent}
    (its,) = directory.glob("lib/python*/site-packages")
    for name in (*INSTALLED, "six.py"):
        if (ours / name).exists():
            (its / name).symlink_to(ours / name)
    python = directory / "bin/python"
    assert subprocess.run([python, "-c", "import sterna"], capture_output=True, timeout=240).returncode != 0
    return python


def test_an_archive_has_a_name_that_spark_unpacks(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"call it \.tar\.gz"):
        make_archive(tmp_path / "sterna.zip")


@pytest.mark.slow
@pytest.mark.timeout(SOON_S + 120)
def test_spark_submit_needs_no_installation(start_feeding: Callable[..., FeedingNode], tmp_path: Path) -> None:
    node = start_feeding()
    node.publish("in/a", range(10))
    make_archive(tmp_path / "sterna.tar.gz")
    (tmp_path / "app.py").write_text(APPLICATION)
    python = str(bare_python(tmp_path / "bare"))
    (tmp_path / "spark-defaults.conf").write_text("spark.master local-cluster[1,1,1024]\nspark.ui.enabled false\n")
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    (lines,) = snippets("bash", "mkdir here")
    script = lines.replace("app.py", f"app.py {node.feed} {node.broker} {tmp_path / 'checkpoint'}")
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, timeout=SOON_S, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["read 10", "written 10"]
