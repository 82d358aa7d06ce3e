"""The benchmarks and experiments by the names of their commands.  A new one is a module and a row here."""

from __future__ import annotations

from sterna.measure.command import CommandEntry, CommandGroup

PNG = "Draw it too, into this file (needs matplotlib)."
PLOT = "Also draw the figures into this PNG file."

BENCHES = CommandGroup(
    help="Measure what a broker costs, and the pipeline.",
    entries={
        "brokers": CommandEntry("sterna.measure.workloads.brokers:bench"),
        "network": CommandEntry("sterna.measure.workloads.network:bench", PNG),
        "pipeline": CommandEntry("sterna.measure.workloads.pipeline.bench:bench", PNG),
        "operators": CommandEntry("sterna.measure.workloads.operators.bench:bench", PNG),
        "migration": CommandEntry("sterna.measure.workloads.migration.bench:bench"),
        "adaptation": CommandEntry("sterna.measure.workloads.adaptation.bench:bench"),
        "ildm": CommandEntry("sterna.measure.ildm.bench:bench", PNG),
        "dashboard": CommandEntry("sterna.measure.workloads.dashboard.bench:bench", PNG),
    },
    picture_option="png",
    width=120,
)

EXPERIMENTS = CommandGroup(
    help="Repeat experiments of papers, with real processes where there can be some.",
    entries={
        "traffic": CommandEntry("sterna.measure.papers.traffic.report:experiment", PLOT),
        "convergence": CommandEntry("sterna.measure.papers.convergence.report:experiment", PLOT),
        "coordinates": CommandEntry(
            "sterna.measure.papers.coordinates.report:experiment", "Draw the thesis' figures into this directory."
        ),
        "emma": CommandEntry("sterna.measure.papers.emma.report:emma_experiment", PLOT),
        "adaptation": CommandEntry("sterna.measure.papers.emma.beyond:experiment"),
        "factories": CommandEntry("sterna.measure.papers.emma.report:factories_experiment", PLOT),
        "migration": CommandEntry(
            "sterna.measure.papers.migration.report:experiment", "Draw the paper's plots into this directory."
        ),
        "mobile": CommandEntry(
            "sterna.measure.papers.mobile.report:experiment", "Draw the paper's Figures 4.4 to 4.8 into this directory."
        ),
    },
    picture_option="plot",
    width=140,
)
