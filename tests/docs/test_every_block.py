"""Every fenced block of the documentation is executed by a test that is named here, or stands here with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "contrib/README.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```([\w-]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

_COMMANDS = "tests/docs/test_commands.py::"
_SHELL = "tests/docs/test_shell_blocks.py::"
_FIRST_NODE = "tests/docs/test_first_node_page.py::test_the_commands_of_the_page_do_what_it_says"
_SERVICES = "tests/docs/test_service_blocks.py::"
_SPARK = "tests/pipeline/test_documentation.py::"

BY_KIND = {
    ("*", "toml"): "tests/docs/test_snippets.py::test_a_configuration_snippet_is_valid",
    ("*", "console"): "tests/docs/test_snippets.py::test_a_console_snippet_prints_what_it_shows",
    ("pipeline.md", "python"): f"{_SPARK}test_the_snippets_of_the_page_do_what_it_says",
    ("pipeline.md", "sh"): f"{_SPARK}test_the_commands_of_the_page_do_what_it_says",
    ("first-node.md", "sh"): _FIRST_NODE,
    ("first-node.md", "text"): _FIRST_NODE,
    ("tour.md", "python"): f"{_SPARK}test_the_tour_prints_what_its_page_shows",
    ("tour.md", "text"): f"{_SPARK}test_the_tour_prints_what_its_page_shows",
    ("operators.md", "python"): "tests/docs/test_functions_page.py::test_the_functions_of_the_page_compute",
    (
        "gateway.md",
        "sh-session",
    ): "tests/docs/test_gateway_page.py::test_a_subscriber_behind_a_gateway_does_not_notice_that_its_node_was_killed",
    (
        "network.md",
        "sh-session",
    ): "tests/docs/test_network_page.py::test_two_nodes_as_the_page_makes_them_are_one_broker",
    ("migration.md", "sh-session"): "tests/docs/test_migration_page.py::test_the_commands_do_what_the_page_shows",
}
"""Page and language -> the test that executes all such blocks; it takes them from the page."""

EXECUTED = {
    ("pipeline.md", "export AWS"): "tests/pipeline/test_object_store.py::test_the_commands_of_the_page_fill_an_archive",
    ("pipeline.md", "mkdir here"): "tests/pipeline/test_shipping.py::test_spark_submit_needs_no_installation",
    ("README.md", "sterna node"): f"{_COMMANDS}test_the_five_commands_of_the_readme_do_what_it_says",
    ("operating.md", "$ sterna client"): f"{_COMMANDS}test_a_session_prints_what_the_page_shows",
    ("operating.md", "$ sterna ban"): f"{_COMMANDS}test_a_session_prints_what_the_page_shows",
    ("operating.md", "$ curl"): f"{_COMMANDS}test_a_session_prints_what_the_page_shows",
    ("operating.md", "$ sterna trace"): f"{_COMMANDS}test_packets_are_traced_as_the_page_shows",
    ("operating.md", "$ sterna rr"): f"{_COMMANDS}test_a_question_is_answered_as_the_page_says",
    ("operating.md", "$ sterna backup"): f"{_COMMANDS}test_a_backup_is_made_and_restored_as_the_page_says",
    ("operators.md", "$ sterna operators"): f"{_COMMANDS}test_expressions_are_listed_as_the_page_says",
    (
        "operators.md",
        "messages ",
    ): "tests/cli/test_command_line.py::test_an_expression_is_explained_and_a_wrong_one_pointed_at",
    ("upgrading.md", "sterna backup"): f"{_COMMANDS}test_a_node_is_upgraded_as_the_page_says",
    ("configuration.md", "$ sterna reload"): f"{_SHELL}test_a_reload_says_what_the_page_shows",
    ("configuration.md", "connection plant"): f"{_SHELL}test_a_bridge_as_the_page_has_it_carries_messages_both_ways",
    ("configuration.md", "sterna import"): f"{_SHELL}test_a_configuration_of_mosquitto_becomes_a_node",
    ("coming-from-mosquitto.md", "sterna import"): f"{_SHELL}test_a_configuration_of_mosquitto_becomes_a_node",
    ("coming-from-mosquitto.md", "sterna interwork"): f"{_SHELL}test_a_broker_is_joined_by_the_command_of_the_page",
    ("interworking.md", "sterna interwork"): f"{_SHELL}test_a_broker_is_joined_by_the_command_of_the_page",
    ("adaptation.md", "head"): f"{_SHELL}test_files_of_adaptation_are_made_and_checked",
    ("adaptation.md", "sterna worker"): f"{_SHELL}test_files_of_adaptation_are_made_and_checked",
    ("operating.md", "/usr/bin/python3 -m venv"): f"{_SERVICES}test_a_node_becomes_a_service",
    ("contrib/README.md", "install -m"): f"{_SERVICES}test_workers_and_coordinators_become_services",
    ("experiments.md", "about ="): f"{_SHELL}test_the_scenario_of_the_page_is_one",
}
"""Page and beginning of a block -> the test that executes it."""

_LINTED = "no container engine and no cluster in CI; tests/docs/test_contrib.py checks the files that it names"

NOT_EXECUTED = {
    ("contrib/README.md", "docker build"): _LINTED,
    ("contrib/README.md", "head -c 24"): f"{_LINTED}; tests/live/test_compose.py runs the nodes as processes",
    ("contrib/README.md", "kubectl"): _LINTED,
    (
        "README.md",
        "python3 -m venv",
    ): "tests/live/test_wheel.py::test_the_lines_of_the_readme_install_a_node_from_the_sources",
    ("README.md", " clients"): "a drawing",
    ("ARCHITECTURE.md", " clients"): "a drawing",
    ("ARCHITECTURE.md", "cli/"): "a map",
    ("CONTRIBUTING.md", "make check"): "they run this test",
    ("CONTRIBUTING.md", "Subscribers: "): "an example of a commit message",
    ("migration.md", "  new owner "): "a drawing",
    ("operating.md", " clients"): "a drawing",
    ("upgrading.md", " the order"): "a drawing",
    ("migration.md", "  gateway "): "a drawing",
}
"""Page and beginning of a block -> why no test executes it."""


def blocks() -> Iterator[tuple[str, str, str, str]]:
    """Page, indentation, language and text of every block."""
    for page in PAGES:
        name = page.name if page.parent.name == "docs" else str(page.relative_to(ROOT))
        for indent, kind, text in FENCE.findall(page.read_text()):
            yield name, indent, kind, text


def owners(page: str, kind: str, text: str) -> list[str]:
    found = [test for (at, of), test in BY_KIND.items() if at in ("*", page) and of == kind]
    for table in (EXECUTED, NOT_EXECUTED):
        found += [says for (at, beginning), says in table.items() if at == page and text.startswith(beginning)]
    return found


@pytest.mark.parametrize("page", [page.relative_to(ROOT) for page in PAGES], ids=str)
def test_every_block_is_executed_or_the_reason_is_here(page: Path) -> None:
    name = page.name if page.parts[0] == "docs" else str(page)
    for at, indent, kind, text in blocks():
        if at == name:
            assert not indent, f"tests look for fences at the beginning of a line:\n{text}"
            assert len(owners(at, kind, text)) == 1, f"nobody, or more than one test, executes\n{text}"


def test_a_new_block_is_noticed() -> None:
    assert owners("upgrading.md", "sh", "sterna downgrade\n") == []
    assert owners("upgrading.md", "python", "import sterna\n") == []


@pytest.mark.parametrize("table", [EXECUTED, NOT_EXECUTED], ids=["executed", "not-executed"])
def test_no_entry_is_left_of_a_block_that_is_gone(table: dict[tuple[str, str], str]) -> None:
    there = [(page, text) for page, _, _, text in blocks()]
    gone = [key for key in table if not any(page == key[0] and text.startswith(key[1]) for page, text in there)]
    assert gone == []


@pytest.mark.parametrize("named", sorted({*BY_KIND.values(), *EXECUTED.values()}))
def test_a_named_test_exists(named: str) -> None:
    file, _, test = named.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text()
