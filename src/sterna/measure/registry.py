"""The benchmarks and experiments by the names of their commands.  A new one is a module and a row here."""

from __future__ import annotations

from sterna.measure.command import Entry, Group

PNG = "Draw it too, into this file (needs matplotlib)."
PLOT = "Also draw the figures into this PNG file."

BENCHES = Group(
    help="Measure what a broker costs, and the pipeline.",
    entries={
        "brokers": Entry("sterna.measure.workloads.brokers:bench"),
        "network": Entry("sterna.measure.workloads.network:bench", PNG),
        "pipeline": Entry("sterna.measure.workloads.pipeline.bench:bench", PNG),
        "operators": Entry("sterna.measure.workloads.operators.bench:bench", PNG),
        "migration": Entry("sterna.measure.workloads.migration.bench:bench"),
    },
    picture_option="png",
    width=120,
)

EXPERIMENTS = Group(
    help="Repeat experiments of papers with real processes.",
    entries={
        "traffic": Entry("sterna.measure.papers.traffic.report:experiment", PLOT),
        "convergence": Entry("sterna.measure.papers.convergence.report:experiment", PLOT),
        "migration": Entry(
            "sterna.measure.papers.migration.report:experiment", "Draw the paper's plots into this directory."
        ),
    },
    picture_option="plot",
    width=140,
)
