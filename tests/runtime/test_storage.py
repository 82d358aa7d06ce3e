"""The journal on real files: locks, rolls, full disks, other threads."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sterna.journal.frames import SEGMENT_HEADER_BYTES, segment_header
from sterna.journal.journal import Journal
from sterna.journal.recovery import RecoveredMessages, Recovery, recover
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Group, Position
from sterna.mqtt.message import Message
from sterna.runtime.disk.segment_files import FileStore
from sterna.vocabulary.errors import ConfigurationError, JournalError
from sterna.vocabulary.versions import Versions

SETTINGS = JournalSettings()
SMALL_SEGMENTS = JournalSettings(segment_bytes=4096, retention_bytes=16384)


def message(number: int, size: int = 0) -> Message:
    return Message(b"t/%d" % number, b"%d " % number + bytes(size), qos=1, received_at=1.7e9 + number)


def opened(
    store: FileStore, settings: JournalSettings, since: Position = BEGINNING
) -> tuple[Journal, list[int], Recovery]:
    recovery = recover(store, since)
    offsets = [one.offset for frame in recovery if isinstance(frame, RecoveredMessages) for one in frame.messages]
    return (
        Journal(store, settings, epoch=recovery.last_epoch + 1, recovered=recovery, tail_messages=0),
        offsets,
        recovery,
    )


def closed_group(journal: Journal, count: int = 1, size: int = 0) -> Group:
    for _ in range(count):
        journal.append(message(journal.next_offset, size))
    group = journal.close_group()
    assert group is not None
    return group


def commit(journal: Journal, store: FileStore, count: int = 1, size: int = 0) -> None:
    group = closed_group(journal, count, size)
    journal.committed(group, store.write(group))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Files of this process cannot grow past `size`: the kernel takes what fits and refuses the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_was_written_is_there_after_reopening(tmp_path: Path, durability: str) -> None:
    settings = JournalSettings(durability="fsync" if durability == "fsync" else "os", segment_bytes=4096)
    with FileStore(tmp_path / "deep" / "journal", settings, "node-1") as store:
        journal, _, _ = opened(store, settings)
        for _ in range(20):
            commit(journal, store, 2)
        half = journal.position
        for _ in range(20):
            commit(journal, store, 2)
    with FileStore(tmp_path / "deep" / "journal", settings, "node-1") as store:
        journal, offsets, recovery = opened(store, settings, half)
        assert offsets == list(range(40, 80))
        assert (recovery.cuts, recovery.damage, journal.first_offset) == ([], [], 0)
        found = [journal.read(offset) for offset in range(80)]
        assert [one and one.payload for one in found] == [b"%d " % number for number in range(80)]
        assert len(store.segments()) > 5


def test_segments_are_named_by_offset_and_serial_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    with FileStore(tmp_path / "journal", SMALL_SEGMENTS, "node-1") as store:
        journal, _, _ = opened(store, SMALL_SEGMENTS)
        for _ in range(2):
            journal.note(bytes(3000))
            group = journal.close_group()
            assert group is not None
            journal.committed(group, store.write(group))
        commit(journal, store, 3)
    names = sorted(os.listdir(tmp_path / "journal"))
    assert names == [*(f"{0:020d}-{serial:010d}.sterna" for serial in (1, 2)), "identity"]
    assert {stat.S_IMODE((tmp_path / "journal" / name).stat().st_mode) for name in names} == {0o600}
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o700


def test_a_torn_file_is_cut_on_disk_and_the_next_opening_finds_it_sound(tmp_path: Path) -> None:
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        journal, _, _ = opened(store, SETTINGS)
        commit(journal, store, 3)
        sound = journal.position.byte
        commit(journal, store, 3)
        path = Path(store.segments()[0].name)
    os.truncate(path, path.stat().st_size - 5)
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        journal, offsets, recovery = opened(store, SETTINGS)
        assert offsets == [0, 1, 2]
        assert [(cut.file, cut.byte) for cut in recovery.cuts] == [(str(path), sound)]
        assert path.stat().st_size == sound
        commit(journal, store)
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        _, offsets, recovery = opened(store, SETTINGS)
        assert (offsets, recovery.cuts, recovery.damage) == ([0, 1, 2, 3], [], [])


def test_an_empty_file_left_by_a_crash_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}-{1:010d}.sterna").touch()
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        journal, _, recovery = opened(store, SETTINGS)
        assert len(recovery.cuts) == 1
        commit(journal, store)
        assert [file.serial for file in store.segments()] == [2]


def test_a_second_node_on_the_same_directory_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    with (
        FileStore(tmp_path, SETTINGS, "node-1"),
        pytest.raises(ConfigurationError, match=f"{tmp_path} is in use by another running node"),
    ):
        FileStore(tmp_path, SETTINGS, "node-1")
    FileStore(tmp_path, SETTINGS, "node-1").close()


def test_the_lock_ends_with_the_process_that_held_it(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from sterna.journal.settings import JournalSettings;"
        "from sterna.runtime.disk.segment_files import FileStore;"
        "store = FileStore(pathlib.Path(sys.argv[1]), JournalSettings(), 'a'); print('locked', flush=True);"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigurationError, match="in use"):
            FileStore(tmp_path, SETTINGS, "node-1")
        holder.kill()
        holder.wait(timeout=240)
        FileStore(tmp_path, SETTINGS, "node-1").close()


def test_a_directory_that_cannot_be_made_is_the_operators_to_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file/journal cannot be opened"):
        FileStore(tmp_path / "file" / "journal", SETTINGS, "node-1")


def test_a_node_name_that_does_not_fit_a_segment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="longer than"):
        FileStore(tmp_path, SETTINGS, "n" * 300)


def test_an_unknown_format_is_refused_and_the_lock_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"{0:020d}-{1:010d}.sterna"
    with monkeypatch.context() as future:
        future.setattr("sterna.vocabulary.versions.JOURNAL", Versions(8, 9))
        path.write_bytes(segment_header("node-1", 1))
    for _ in range(2):
        with pytest.raises(
            JournalError, match=f"{path} is of version 9, this release understands 2; a newer release wrote it"
        ):
            FileStore(tmp_path, SETTINGS, "node-1")
    assert path.stat().st_size == SEGMENT_HEADER_BYTES


def test_a_group_the_disk_refuses_leaves_no_trace_and_the_next_one_fits(tmp_path: Path) -> None:
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        journal, _, _ = opened(store, SETTINGS)
        commit(journal, store)
        before = journal.position.byte
        refused = closed_group(journal, size=100_000)
        with (
            file_size_limit(before + 1000),
            pytest.raises(JournalError, match=r"-0000000001.sterna: File too large; raise"),
        ):
            store.write(refused)
        journal.failed(refused)
        assert store.segments()[0].size == before
        commit(journal, store)
        assert [journal.read(offset) is not None for offset in range(3)] == [True, False, True]
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        _, offsets, recovery = opened(store, SETTINGS)
        assert (offsets, recovery.cuts, recovery.damage) == ([0, 2], [], [])


def test_a_segment_that_cannot_take_its_first_group_is_not_begun(tmp_path: Path) -> None:
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        journal, _, _ = opened(store, SETTINGS)
        refused = closed_group(journal, size=100_000)
        with file_size_limit(1000), pytest.raises(JournalError, match="File too large"):
            store.write(refused)
        assert os.listdir(tmp_path) == ["identity"]
        journal.failed(refused)
        commit(journal, store)
        assert [file.serial for file in store.segments()] == [1]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def test_a_full_disk_is_explained_and_survived(tiny_disk: Path) -> None:
    settings = JournalSettings(segment_bytes=64 * 1024, retention_bytes=64 * 1024)
    with FileStore(tiny_disk, settings, "node-1") as store:
        journal, _, _ = opened(store, settings)
        refused: dict[int, str] = {}
        for _ in range(100):
            group = closed_group(journal, size=10_000)
            try:
                journal.committed(group, store.write(group))
            except JournalError as error:
                refused[group.base_offset] = str(error)
                journal.failed(group)
                journal.enforce_retention(now=0.0)
        assert refused
        assert all("No space left on device; free space on this disk" in text for text in refused.values())
        assert journal.next_offset - 1 not in refused
        kept = [offset for offset in range(journal.first_offset, 100) if offset not in refused]
    with FileStore(tiny_disk, settings, "node-1") as store:
        _, offsets, recovery = opened(store, settings)
        assert (offsets, recovery.cuts, recovery.damage) == (kept, [], [])


def test_a_store_that_cannot_undo_refuses_everything_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int, size: int = 0) -> None:
        raise OSError(5, "Input/output error")

    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        journal, _, _ = opened(store, SETTINGS)
        commit(journal, store)
        group = closed_group(journal)
        with monkeypatch.context() as disk:
            disk.setattr(os, "fdatasync", broken)
            disk.setattr(os, "ftruncate", broken)
            with pytest.raises(JournalError, match="Input/output error; check the disk"):
                store.write(group)
        with pytest.raises(JournalError, match=r"could not be cut off.*restart the node"):
            store.write(group)


def test_after_a_failed_sync_the_file_is_never_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        journal, _, _ = opened(store, SETTINGS)
        commit(journal, store)
        group = closed_group(journal)
        fdatasync, calls = os.fdatasync, []

        def fail_once(fd: int) -> None:
            calls.append(fd)
            if len(calls) == 1:
                raise OSError(5, "Input/output error")
            fdatasync(fd)

        monkeypatch.setattr(os, "fdatasync", fail_once)
        with pytest.raises(JournalError):
            store.write(group)
        journal.failed(group)
        commit(journal, store)
        assert [(file.serial, file.first_offset) for file in store.segments()] == [(1, 0), (2, 2)]


def test_a_worker_writes_while_the_loop_appends_reads_and_trims(tmp_path: Path) -> None:
    with FileStore(tmp_path, SMALL_SEGMENTS, "node-1") as store, ThreadPoolExecutor(1) as worker:
        journal, _, _ = opened(store, SMALL_SEGMENTS)
        for _ in range(60):
            group = closed_group(journal, 3)
            written = worker.submit(store.write, group)
            while not written.done():
                journal.append(message(journal.next_offset))
                oldest = journal.first_offset
                for offset in range(oldest, min(oldest + 5, journal.next_offset)):
                    one = journal.read(offset)
                    assert one is not None
                    assert one.payload == b"%d " % offset
            journal.committed(group, written.result(timeout=240))
            journal.enforce_retention(now=0.0)
        assert journal.first_offset > 0
        assert journal.damage == []
        assert len(store._readers) <= 16


def test_a_segment_removed_from_under_a_running_node_is_lost_and_told_not_fatal(tmp_path: Path) -> None:
    with FileStore(tmp_path, SMALL_SEGMENTS, "node-1") as store:
        journal, _, _ = opened(store, SMALL_SEGMENTS)
        for _ in range(30):
            commit(journal, store)
        first, second = store.segments()[:2]
        Path(first.name).unlink()
        assert journal.read(0) is None
        assert [(piece.file, piece.first_offset) for piece in journal.damage] == [(first.name, 0)]
        assert journal.enforce_retention(now=2e9) > second.first_offset


def test_many_segments_do_not_hold_many_files_open(tmp_path: Path) -> None:
    settings = JournalSettings(segment_bytes=1024)
    with FileStore(tmp_path, settings, "node-1") as store:
        journal, _, _ = opened(store, settings)
        for _ in range(40):
            commit(journal, store)
        assert len(store.segments()) == 40
        before = len(os.listdir("/proc/self/fd"))
        assert all(journal.read(offset) for offset in range(40))
        assert len(os.listdir("/proc/self/fd")) <= before + 16


def test_a_journal_keeps_its_identity_and_another_directory_has_another_one(tmp_path: Path) -> None:
    def identity(name: str) -> str:
        with FileStore(tmp_path / name, SETTINGS, "node-1") as store:
            return store.identity

    first = identity("a")
    assert identity("a") == first != identity("b")
    (tmp_path / "a" / "identity").write_text("nonsense")
    assert identity("a") not in (first, "", "nonsense")


def test_a_full_disk_keeps_no_node_down_for_want_of_an_identity(tmp_path: Path) -> None:
    with file_size_limit(0), FileStore(tmp_path, SETTINGS, "node-1") as store:
        assert store.identity == ""
    with FileStore(tmp_path, SETTINGS, "node-1") as store:
        assert store.identity
