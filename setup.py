"""Compiles the hot modules with mypyc where a C compiler is at hand; everywhere else they run as they are written.

The sources are the truth: compiled or not, they do the same.  STERNA_INTERPRETED=1 leaves them uncompiled;
STERNA_COMPILED=1 makes it an error if they do not compile although a compiler and Python's headers are there.
mypyc checks types first: packages whose types it cannot do without stand in pyproject.toml under [build-system].
"""

import os
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

#: What runs per message.  Everything here is typed strictly enough for mypyc and imports nothing it would slow down.
HOT_MODULES = [
    "src/sterna/vocabulary/identity.py",
    "src/sterna/mqtt/framing.py",
    "src/sterna/mqtt/message.py",
    "src/sterna/mqtt/packets.py",
    "src/sterna/mqtt/properties.py",
    "src/sterna/mqtt/topics.py",
    "src/sterna/mqtt/wire.py",
    "src/sterna/overlay/batches.py",
    "src/sterna/overlay/channel.py",
    "src/sterna/overlay/batch_delta.py",
    "src/sterna/overlay/link.py",
    "src/sterna/overlay/link_table.py",
    "src/sterna/journal/group_encoding.py",
    "src/sterna/journal/journal.py",
    "src/sterna/journal/record_batch.py",
    "src/sterna/broker/backpressure.py",
    "src/sterna/broker/broker.py",
    "src/sterna/broker/broker_state.py",
    "src/sterna/broker/clock.py",
    "src/sterna/broker/commitments.py",
    "src/sterna/broker/counters.py",
    "src/sterna/broker/deadlines.py",
    "src/sterna/broker/delivery/delivery.py",
    "src/sterna/broker/delivery/delivery_audit.py",
    "src/sterna/broker/delivery/encoding.py",
    "src/sterna/broker/delivery/retained.py",
    "src/sterna/broker/delivery/retained_backlog.py",
    "src/sterna/broker/delivery/routes.py",
    "src/sterna/broker/delivery/share_targets.py",
    "src/sterna/broker/expressions/computation.py",
    "src/sterna/broker/expressions/computations.py",
    "src/sterna/broker/expressions/parts.py",
    "src/sterna/broker/ingress.py",
    "src/sterna/broker/packets/acknowledgements.py",
    "src/sterna/broker/packets/dispatcher.py",
    "src/sterna/broker/packets/publications.py",
    "src/sterna/broker/packets/traced_packets.py",
    "src/sterna/broker/session/connection.py",
    "src/sterna/broker/session/offset_queue.py",
    "src/sterna/broker/session/outbox.py",
    "src/sterna/broker/session/qos0_hold.py",
    "src/sterna/broker/session/reading_rate.py",
    "src/sterna/broker/session/session.py",
    "src/sterna/broker/session/session_log.py",
    "src/sterna/broker/session/shares.py",
    "src/sterna/broker/session/subscriptions.py",
    "src/sterna/broker/session_lifecycle.py",
    "src/sterna/broker/topic_counts.py",
    "src/sterna/broker/topic_flows.py",
    "src/sterna/broker/work_budget.py",
    "src/sterna/gateway/client.py",
    "src/sterna/gateway/context.py",
    "src/sterna/gateway/deliveries.py",
    "src/sterna/gateway/extended_client.py",
    "src/sterna/gateway/ledger.py",
    "src/sterna/gateway/upstream.py",
    "src/sterna/gateway/watched_client.py",
    "src/sterna/interworking/joint.py",
    "src/sterna/interworking/marks.py",
    "src/sterna/interworking/poison.py",
    "src/sterna/interworking/proxy/witness.py",
    "src/sterna/interworking/storms.py",
    "src/sterna/operators/aggregates.py",
    "src/sterna/operators/engine.py",
    "src/sterna/operators/exact_sum.py",
    "src/sterna/operators/part_merging.py",
    "src/sterna/operators/part_engine.py",
    "src/sterna/operators/sketch.py",
    "src/sterna/operators/sources.py",
    "src/sterna/operators/sliding_span.py",
    "src/sterna/operators/spatial.py",
    "src/sterna/operators/stages.py",
    "src/sterna/operators/payload_values.py",
    "src/sterna/operators/window_parts.py",
    "src/sterna/operators/windows.py",
    "src/sterna/operators/window_division.py",
    "src/sterna/routing/frame_checks.py",
    "src/sterna/routing/message_frames.py",
    "src/sterna/routing/interest.py",
    "src/sterna/routing/outbound.py",
    "src/sterna/routing/paths.py",
    "src/sterna/routing/probes.py",
    "src/sterna/routing/router.py",
    "src/sterna/routing/origin_streams.py",
    "src/sterna/routing/advertisement.py",
    "src/sterna/routing/publication_flooding.py",
    "src/sterna/routing/subscription_flooding.py",
    "src/sterna/node/committing.py",
    "src/sterna/node/driver.py",
    "src/sterna/node/network.py",
    "src/sterna/node/part_exchange.py",
    "src/sterna/node/part_client.py",
    "src/sterna/node/remote_shares.py",
    "src/sterna/node/write_pacing.py",
]


#: What a newcomer forgives, `make test` must not.
DEMANDED = bool(os.environ.get("STERNA_COMPILED"))


def can_compile():
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return any(map(shutil.which, ("cc", "gcc", "clang"))) and headers.exists()


def extensions():
    if os.environ.get("STERNA_INTERPRETED") or not can_compile():
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        if DEMANDED:
            raise
        return []
    # A file of C for each module: all in one takes a compiler nearly twice as long.
    words = ["--config-file=", "--ignore-missing-imports", *HOT_MODULES]
    try:
        compiled = mypycify(words, opt_level="3", debug_level="0", multi_file=True)
    except (SystemExit, Exception) as failure:  # a type check that fails exits, having said why
        if DEMANDED:
            raise
        print(f"sterna: mypyc stopped ({failure!r}); the hot modules stay interpreted", file=sys.stderr)
        return []
    for extension in compiled:
        extension.optional = not DEMANDED  # a compiler that fails costs speed, not the installation
    return compiled


class AllCores(build_ext):
    """Compiles as many files at a time as there are cores; setuptools would take one after the other."""

    def build_extensions(self):
        compile_in_turn = self.compiler.compile

        def compile_at_once(sources, *words, **options):
            with ThreadPoolExecutor(os.cpu_count()) as cores:
                objects = list(cores.map(lambda source: compile_in_turn([source], *words, **options), sources))
            return [name for names in objects for name in names]

        self.compiler.compile = compile_at_once
        super().build_extensions()


setup(ext_modules=extensions(), cmdclass={"build_ext": AllCores})
