"""Settings of workers and coordinators: those that cannot work are named at the start, with the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sterna.overlay.vivaldi_settings import PRESETS
from sterna.runtime.adaptation.coordinator_settings import CoordinatorConfiguration, load_coordinator
from sterna.runtime.adaptation.worker_settings import WorkerConfiguration, load_worker
from sterna.runtime.config.problems import InvalidConfiguration
from sterna.runtime.config.reader import as_toml

LINE = '[adaptation]\nnetwork = "net"\nkey = "a key of sixteen bytes"\n'
NODE = """
[[listener]]
bind = "127.0.0.1:1890"
[admin]
bind = "127.0.0.1:9890"
[network]
name = "net"
bind = "127.0.0.1:7890"
"""


def worker(directory: Path, text: str, node: str = NODE) -> WorkerConfiguration:
    (directory / "node.toml").write_text(node)
    file = directory / "worker.toml"
    file.write_text(text)
    return load_worker(file, {})


def coordinator(directory: Path, text: str) -> CoordinatorConfiguration:
    file = directory / "coordinator.toml"
    file.write_text(text)
    return load_coordinator(file, {})


def test_a_worker_takes_addresses_from_the_file_of_its_node(tmp_path: Path) -> None:
    made = worker(tmp_path, f'[worker]\nname = "w"\nnode_file = "node.toml"\n{LINE}')
    assert (made.worker.admin, made.worker.clients) == ("127.0.0.1:9890", "127.0.0.1:1890")
    assert "sixteen" not in as_toml(made)


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("heights = false", {"heights": False}),
        ("median = false", {"median_of": 1}),
        ("replays = false", {"replays": 0}),
        ("gravity = false", {"gravity_s": 0.0}),
        ("remembered = false", {"remembered_error": 0.0}),
        ("adjustment = true", {"adjustment_window": 20}),
    ],
)
def test_each_addition_to_coordinates_is_switched_by_a_key_of_its_own(
    tmp_path: Path, line: str, changed: dict[str, Any]
) -> None:
    for preset, settings in PRESETS.items():
        made = coordinator(tmp_path, f'{LINE}[coordinates]\npreset = "{preset}"\n')
        assert made.coordinates.settings() == settings
        made = coordinator(tmp_path, f'{LINE}[coordinates]\npreset = "{preset}"\n{line}\n')
        assert made.coordinates.settings() == replace(settings, **changed)


@pytest.mark.parametrize(
    ("text", "node", "problem"),
    [
        (LINE, NODE, "[worker] node_file: is missing, and a process needs it"),
        ('[worker]\nnode_file = "node.toml"\n', NODE, '[adaptation] network: "" is no name'),
        (
            '[worker]\nnode_file = "node.toml"\n[adaptation]\nnetwork = "n"\n',
            NODE,
            "[adaptation] key_file: nothing would show that an order comes from a coordinator",
        ),
        (f'[worker]\nnode_file = "node.toml"\n{LINE}', "[network]\n", "node.toml cannot be used: "),
        (f'[worker]\nnode_file = "node.toml"\n{LINE}', "", "has no table [network]"),
        (
            f'[worker]\nnode_file = "node.toml"\n{LINE}',
            NODE.replace(":9890", ":0"),
            "[worker] admin: nothing says where the node's admin port is; give it a fixed port in node_file",
        ),
        (
            f'[worker]\nnode_file = "node.toml"\nhost = "command"\n{LINE}',
            NODE,
            '[worker] status: is missing, and host = "command" needs it',
        ),
        (
            f'[worker]\nnode_file = "node.toml"\necho = "0.0.0.0:7886"\n{LINE}',
            NODE,
            "[worker] advertise: is missing, and nobody can reach every address",
        ),
        (f'[worker]\nnode_file = "node.toml"\n{LINE}[measuring]\nsamples = 0\n', NODE, "[measuring] samples: 0 is out"),
    ],
)
def test_a_worker_that_cannot_work_says_why(tmp_path: Path, text: str, node: str, problem: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        worker(tmp_path, text, node)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f'{LINE}[decisions]\npressure = "seed"\nup = 1.0\ndown = 2.0\n', "would be stopped as soon as it was started"),
        (f"{LINE}[decisions]\ngroups_ms = [5.0, 2.0]\n", "groups_ms must rise"),
        (f'{LINE}[decisions]\nselection = "best"\n', '"best" is none of "steady", "seed", "measure-all"'),
        (f'{LINE}[decisions]\nfloors = "lab"\n', '"lab" is not a table of numbers; write it like { site = 2 }'),
        (f"{LINE}[decisions]\nfloors = {{ lab = 2 }}\nceilings = {{ lab = 1 }}\n", "Site lab: floor 2 and ceiling 1"),
        ('[adaptation]\nnetwork = "net"\n', "[adaptation] key_file"),
    ],
)
def test_a_coordinator_that_cannot_work_says_why(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        coordinator(tmp_path, text)
    assert problem in str(caught.value)


def test_a_coordinator_reads_back_as_it_is_printed(tmp_path: Path) -> None:
    made = coordinator(tmp_path, f"{LINE}[decisions]\nfloors = {{ lab = 2 }}\n")
    assert made.decisions.floors == {"lab": 2}
    printed = as_toml(made).replace("[adaptation]", '[adaptation]\nkey = "a key of sixteen bytes"')
    assert coordinator(tmp_path, printed) == made
