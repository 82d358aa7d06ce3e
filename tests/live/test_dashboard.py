"""The dashboard in a real browser: people see clients move, and give orders; pages of others can do nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from sterna.broker.access.passwords import hash_password
from sterna.cli.admin_client import ask

from .browsers import NARROW, PATIENCE_MS, WIDE, axe_findings, chromium, opened, paints_of
from .clients import Refused, Will
from .conftest import Join
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

expect.set_options(timeout=PATIENCE_MS)

PAGES = (
    "map",
    "overview",
    "clients",
    "access",
    "topics",
    "moves",
    "waiting",
    "adaptation",
    "computing",
    "spark",
    "settings",
    "alarms",
)
SEEN_MOVING_S = 2.0
"""From the start of the command until a move is seen; the median of three counts.  A machine that was busy just then
has a second round of three."""
ROUNDS = 2
CROWD, CROWD_RATE = 20, 5
"""Clients of a node that is emptied, and how many of them go each second."""
TOKEN, READ_TOKEN = "operators-token-1234", "readers-token-12345"
OPERATOR, READER, PASSWORD = "olga", "rita", "correct horse"
BANNED = 0x8A
NASTY = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    with LiveNetwork(tmp_path_factory.mktemp("dashboard"), ("ab", "bc")) as network:
        yield network


def address(node: LiveNode, page: str = "map") -> str:
    return f"http://127.0.0.1:{node.admin_port}/#/{page}"


def go(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=re.compile(name, re.IGNORECASE)).click()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_shows_the_whole_network_without_errors_and_for_everybody(
    three: LiveNetwork, browser: Browser, join: Join, size: tuple[int, int], colours: str
) -> None:
    """Everybody: axe finds nothing serious.  Nothing is loaded from elsewhere."""
    for name in "abc":
        join(three[name], client_id=f"seen-{name}-{colours}")
    requested: list[str] = []
    with opened(browser, "about:blank", size=size, colours=colours) as page:
        page.on("request", lambda request: requested.append(request.url))
        page.goto(address(three["b"]))
        for name in "abc":
            expect(page.locator(f'[data-node="{name}"]')).to_contain_text(re.compile("[1-9] client"))
        for name in PAGES:
            go(page, name)
            expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(name, re.IGNORECASE))
            assert axe_findings(page) == []
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{name} is wider than the screen"
    own = f"http://127.0.0.1:{three['b'].admin_port}/"
    assert len(requested) > len(PAGES)
    assert [url for url in requested if not url.startswith(own)] == []


def test_the_page_is_painted_once_its_files_are_there(three: LiveNetwork, browser: Browser) -> None:
    """The figures are printed; a machine that does other things too says nothing about them."""
    with opened(browser, address(three["a"])) as page:
        expect(page.locator('[data-node="a"]')).to_be_visible()
        found = paints_of(page)
    print(", ".join(f"{name} after {ms:.0f} ms" for name, ms in found.items()))
    assert 0 < found["first-paint"] <= found["first-contentful-paint"] < PATIENCE_MS


def test_a_client_that_is_moved_is_seen_moving_on_the_map(three: LiveNetwork, browser: Browser, join: Join) -> None:
    """As people move it: by `sterna move`."""
    with opened(browser, address(three["b"])) as page:
        expect(page.locator('[data-node="c"]')).to_be_visible()
        # The page notes by itself when a flight is drawn: no question from here is in the figure.
        page.evaluate(
            """() => {
                window.flights = {};
                const look = () => {
                    for (const one of document.querySelectorAll("[data-flight]"))
                        window.flights[one.dataset.flight] ??= Date.now();
                };
                new MutationObserver(look).observe(document.body, {childList: true, subtree: true});
            }"""
        )
        for turn in range(ROUNDS):
            travellers = [f"traveller-{turn}-{number}" for number in range(3)]
            for name in travellers:
                join(three["a"], client_id=name, persistent=True).subscribe("journey", 1)
            took_s = [_seen_moving_after_s(page, three["b"], name) for name in travellers]
            print(f"seen moving {', '.join(f'{one:.2f}' for one in took_s)} s after the command began")
            if median(took_s) < SEEN_MOVING_S:
                break
    assert median(took_s) < SEEN_MOVING_S


def _seen_moving_after_s(page: Page, node: LiveNode, client: str) -> float:
    command = [sys.executable, "-m", "sterna", "move", client, "--to", "c", "--admin", node.admin]
    ordered = time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seen: float = page.wait_for_function("name => window.flights[name]", arg=f"{client} a c").json_value()
    return seen / 1000 - ordered


def test_a_node_that_is_emptied_shows_how_far_it_is(three: LiveNetwork, browser: Browser, join: Join) -> None:
    for number in range(CROWD):
        join(three["a"], client_id=f"crowd-{number:02}", persistent=True).close()
    with opened(browser, address(three["b"], "moves")) as page:
        page.evaluate(
            """() => {
                window.progress = [];
                const look = () => {
                    const bar = document.querySelector("progress");
                    if (bar && window.progress.at(-1) !== bar.value) window.progress.push(bar.value);
                };
                new MutationObserver(look).observe(document.body, {childList: true, subtree: true, attributes: true});
            }"""
        )
        ask(three["b"].admin, "/evacuate", None, {"node": "a", "rate": CROWD_RATE})
        try:
            expect(page.get_by_text("a is being emptied")).to_be_visible()
            page.wait_for_function(
                f"() => window.progress.filter(one => one > 0).length >= 3 && window.progress.at(-1) >= {CROWD}"
            )
        finally:
            ask(three["b"].admin, "/evacuate", None, {"node": "a", "stop": True})
        seen = page.evaluate("window.progress")
        assert seen == sorted(seen), seen
        for number in range(CROWD):
            expect(page.get_by_role("rowheader", name=f"crowd-{number:02}", exact=True).first).to_be_visible()
        assert axe_findings(page) == []


def test_a_node_is_emptied_from_the_map_by_keyboard_alone(three: LiveNetwork, browser: Browser) -> None:
    with opened(browser, address(three["a"])) as page:
        page.locator('[data-node="c"]').focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("region", name="Node c")).to_be_visible()
        assert axe_findings(page) == []
        button = page.get_by_role("button", name="Empty this node…")
        button.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        assert axe_findings(page) == []
        page.get_by_role("dialog").get_by_label("Clients per second").press("Enter")
        expect(page.get_by_role("dialog")).to_have_count(0)
        button = page.get_by_role("button", name="Let clients in again…")
        expect(button).to_be_visible()
        button.click()
        page.get_by_role("button", name="Let them in").click()
        expect(page.get_by_role("button", name="Empty this node…")).to_be_visible()


def test_users_and_rules_are_changed_at_all_nodes_by_mouse_and_by_keyboard(
    three: LiveNetwork, browser: Browser, join: Join
) -> None:
    """By mouse: a user is set, barred and reset.  By keyboard: a rule is set, asked about and removed."""
    users = "List of users"
    with opened(browser, address(three["a"], "access")) as page:
        page.get_by_role("button", name="Add a user…").click()
        assert axe_findings(page) == []
        page.get_by_role("dialog").get_by_label("User").fill("uma")
        page.get_by_role("dialog").get_by_label("Password").fill(PASSWORD)
        page.get_by_role("dialog").get_by_role("button", name="Set").click()
        row = page.get_by_label(users).locator('[data-user="uma"]')
        expect(row).to_contain_text("may come in")
        expect(page.get_by_label("Last change")).to_have_text("password of uma: done at a, b, c, 0 disconnected")
        client = join(three["c"], username="uma", password=PASSWORD)
        row.get_by_role("button", name="Bar uma").click()
        page.get_by_role("dialog").get_by_role("button", name="Bar").click()
        expect(row).to_contain_text("barred")
        client.wait_for_end()
        expect(page.get_by_label("Last change")).to_have_text("uma barred: done at a, b, c, 1 disconnected")
        row.get_by_role("button", name="Reset uma").click()
        page.get_by_role("dialog").get_by_role("button", name="Reset").click()
        expect(row).to_have_count(0)

        page.get_by_role("button", name="Add a rule…").press("Enter")
        for field, words in (("Name", "10-oven"), ("Topic filters", "oven/#"), ("Users", "uma")):
            page.get_by_role("dialog").get_by_label(field).focus()
            page.keyboard.press("Control+a")
            page.keyboard.type(words)
        page.get_by_role("dialog").get_by_label("Effect").focus()
        page.keyboard.type("deny")
        page.get_by_role("dialog").get_by_label("Name").press("Enter")
        rule = page.get_by_label("List of rules").locator('[data-rule="10-oven"]')
        expect(rule).to_contain_text(re.compile("deny.*uma.*publish and subscribe.*oven/#"))
        check = page.get_by_role("region", name="Which rule decides")
        check.get_by_label("User").focus()
        page.keyboard.type("uma")
        check.get_by_label("To topic").focus()
        page.keyboard.type("oven/3")
        expect(check.get_by_role("status")).to_have_text(re.compile(r"^denied: rule 1 denies oven/#"))
        assert ask(three["c"].admin, "/access", None)["rows"][0]["name"] == "10-oven"
        assert axe_findings(page) == []
        rule.get_by_role("button", name="Remove rule 10-oven").press("Enter")
        page.get_by_role("dialog").get_by_role("button", name="Remove").press("Enter")
        expect(rule).to_have_count(0)
        expect(check.get_by_role("status")).to_have_text(re.compile("^allowed"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """A node that asks for a token or a password, also of readers."""
    directory = tmp_path_factory.mktemp("guarded")
    people = directory / "people"
    lines = [hash_password(user, PASSWORD, random_bytes=os.urandom) for user in (OPERATOR, READER)]
    people.write_text("\n".join(lines) + "\n")
    toml = (
        f'[admin]\nbind = "127.0.0.1:0"\nanonymous = false\ntoken = "{TOKEN}"\nread_token = "{READ_TOKEN}"\n'
        f'password_file = "{people}"\noperators = ["{OPERATOR}"]\n'
    )
    with LiveNode(directory, toml) as node:
        yield node


def test_a_token_lets_in_by_keyboard_and_logging_out_locks(guarded: LiveNode, browser: Browser) -> None:
    with opened(browser, address(guarded), errors=False) as page:  # a browser reports each refusal
        field = page.get_by_label("Token")
        field.fill("a guess of a token")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("that is not known here")
        assert axe_findings(page) == []
        field.fill(READ_TOKEN)
        field.press("Enter")
        expect(page.get_by_text("read only")).to_be_visible()
        expect(page.locator('[data-node="live"]')).to_be_visible()
        go(page, "access")
        expect(page.get_by_label("List of rules")).to_be_visible()
        expect(page.get_by_role("button", name="Add a")).to_have_count(0)
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("operator", exact=True)).to_be_visible()
        assert page.evaluate("document.cookie") == ""


class _Elsewhere(BaseHTTPRequestHandler):
    """A page of another origin: another port of the same machine, so of the same site."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_words: object) -> None:
        pass


def test_a_page_of_another_origin_can_do_nothing(three: LiveNetwork, browser: Browser, join: Join) -> None:
    client = join(three["a"], client_id="victim")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with opened(browser, address(three["a"]), errors=False) as page:
            expect(page.locator('[data-node="a"]')).to_be_visible()  # so the cookie is there
            port = three["a"].admin_port
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            attempt = """async ([address, how]) => {
                try {
                    const said = await fetch(address, how);
                    return said.type + " " + said.status + await said.text();
                }
                catch (error) { return "refused"; }
            }"""
            order = {"method": "POST", "credentials": "include", "body": '{"client": "victim"}'}
            admin = f"http://127.0.0.1:{port}"
            for how in (order | {"headers": {"Content-Type": "application/json"}}, order | {"mode": "no-cors"}):
                assert page.evaluate(attempt, [f"{admin}/kick", how]) in ("refused", "opaque 0")
            for target in ("/dashboard/picture", "/dashboard/me", "/clients"):
                assert page.evaluate(attempt, [f"{admin}{target}", {"credentials": "include"}]) == "refused"
            requested: list[str] = []
            page.on("request", lambda request: requested.append(request.url))
            page.evaluate(
                """address => new Promise(done => {
                    const frame = document.createElement("iframe");
                    frame.onload = done;
                    frame.src = address; document.body.append(frame);
                })""",
                f"{admin}/",
            )
            # A frame that shows the page would have asked for its script before it was loaded.
            assert requested == [f"{admin}/"]
        assert three["a"].events("an operator disconnects a client") == []
        client.publish("still/here", b"", 1)
    finally:
        server.shutdown()
        server.server_close()


def test_a_script_that_gets_into_the_page_is_not_run(three: LiveNetwork, browser: Browser) -> None:
    with opened(browser, address(three["a"]), errors=False) as page:
        expect(page.locator('[data-node="a"]')).to_be_visible()
        refused = page.evaluate(
            """async () => {
                const found = new Set();
                const inline = text => {
                    const script = document.createElement("script");
                    script.append(text);
                    document.body.append(script);
                };
                const attempts = [
                    () => inline("window.injected = true"),
                    () => { document.body.innerHTML = "<img src=x onerror='window.injected = true'>"; },
                    () => { window.eval("window.injected = true"); },
                ];
                const run = new Promise(done => {
                    const look = () => {
                        if (window.injected) done({effectiveDirective: "none, it was run"});
                        else requestAnimationFrame(look);
                    };
                    look();
                });
                for (const attempt of attempts) {
                    const seen = new Promise(done => {
                        document.addEventListener("securitypolicyviolation", done, {once: true});
                    });
                    try { attempt(); } catch (error) { }
                    found.add((await Promise.race([seen, run])).effectiveDirective);
                }
                return [window.injected === undefined, [...found]];
            }"""
        )
        assert refused[0]
        assert set(refused[1]) <= {"script-src", "script-src-elem", "require-trusted-types-for", "trusted-types"}


@pytest.mark.parametrize("name", ["map/%", "%", "nonsense/%E0%A4%A"])
def test_an_address_of_nonsense_shows_the_map(three: LiveNetwork, browser: Browser, name: str) -> None:
    with opened(browser, address(three["a"], name)) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Map")


def test_who_logs_out_in_one_tab_sees_nothing_more_in_another(guarded: LiveNode, browser: Browser) -> None:
    """And a second tab can give orders as long as the login lasts."""
    with opened(browser, address(guarded), errors=False) as page:  # a browser reports each refusal
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_label("Token").press("Enter")
        expect(page.locator('[data-node="live"]')).to_be_visible()
        other = page.context.new_page()
        other.goto(address(guarded, "topics"))
        publish = other.get_by_role("form", name="Publish")
        publish.get_by_label("Topic").fill("from/another/tab")
        publish.get_by_label("Topic").press("Enter")
        expect(publish.get_by_role("status")).to_have_text("published to from/another/tab")
        page.get_by_role("button", name="Log out").click()
        expect(other.get_by_label("Token")).to_be_visible()
        expect(publish).to_have_count(0)


class Mouse:
    """Orders are given by clicks alone; texts have to be typed."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, what: Locator) -> None:
        what.click()

    def write(self, what: Locator, text: str) -> None:
        what.click()
        self.page.keyboard.type(text)

    def choose(self, what: Locator, value: str) -> None:
        what.select_option(value)

    def submit(self, dialog: Locator, title: str) -> None:
        dialog.get_by_role("button", name=title, exact=True).click()


class Keyboard(Mouse):
    """No click at all: Tab until it has the focus, then Enter."""

    def reach(self, what: Locator) -> None:
        expect(what).to_be_visible()
        for _ in range(TABS_MAX):
            if what.evaluate("one => one === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {what}")

    def press(self, what: Locator) -> None:
        self.reach(what)
        self.page.keyboard.press("Enter")

    def write(self, what: Locator, text: str) -> None:
        self.reach(what)
        self.page.keyboard.type(text)

    def choose(self, what: Locator, value: str) -> None:
        """By its first letters, as everywhere."""
        self.reach(what)
        self.page.keyboard.type(value)
        expect(what).to_have_value(value)

    def submit(self, dialog: Locator, title: str) -> None:
        self.press(dialog.get_by_role("button", name=title, exact=True))


TABS_MAX = 400


@pytest.fixture(params=[Mouse, Keyboard], ids=["mouse", "keyboard"])
def hand(request: pytest.FixtureRequest) -> type[Mouse]:
    kind: type[Mouse] = request.param
    return kind


def test_a_client_is_found_moved_kicked_banned_and_let_in_again(
    three: LiveNetwork, browser: Browser, join: Join, hand: type[Mouse]
) -> None:
    first, second = f"{hand.__name__}-lamp-1", f"{hand.__name__}-lamp-2"
    lamp = join(three["a"], client_id=first, persistent=True)
    lamp.subscribe("house/+", 1)
    join(three["b"], client_id=second, persistent=True)
    with opened(browser, address(three["c"], "clients")) as page:
        use = hand(page)
        expect(page.get_by_role("region", name="List of clients")).to_be_visible()
        use.write(page.get_by_label("Identifier or user"), f"{hand.__name__}-lamp")
        expect(page.locator("[data-client]")).to_have_count(2)
        use.press(page.get_by_role("button", name=first, exact=True))
        expect(page.get_by_role("region", name=f"Client {first}")).to_contain_text("house/+")
        assert axe_findings(page) == []
        use.press(page.get_by_role("button", name="Close details"))
        dialog = page.get_by_role("dialog")

        use.press(page.get_by_role("button", name=f"Move {first}"))
        use.choose(dialog.get_by_label("To node"), "c")
        assert axe_findings(page) == []
        use.submit(dialog, "Move")
        expect(dialog).to_have_count(0)
        lamp.wait_for_end()  # it is sent away ...
        assert join(three["c"], client_id=first, persistent=True).session_present  # ... and comes to the other node
        row = page.locator(f'[data-client="{first}"]')
        expect(row.get_by_role("cell", name="c", exact=True)).to_be_visible()

        use.press(page.get_by_role("button", name=f"Kick {second}"))
        assert axe_findings(page) == []
        use.submit(dialog, "Disconnect")
        expect(dialog).to_have_count(0)
        kicked = three["b"].events("an operator disconnects a client")
        assert [one["client"] for one in kicked].count(second) == 1

        use.press(page.get_by_role("button", name=f"Ban {second}"))
        use.write(dialog.get_by_label("Reason"), "it flickers")
        assert axe_findings(page) == []
        use.submit(dialog, "Ban")
        bans = page.get_by_role("region", name="Bans")
        expect(bans).to_contain_text("it flickers")
        for name in "ab":
            wait_until(partial(is_refused, join, three[name], second), f"node {name} refuses who is banned")
        use.press(bans.get_by_role("button", name=f"Lift the ban of client:{second}"))
        use.submit(dialog, "Lift it")
        expect(bans).to_have_count(0)
        wait_until(lambda: not is_refused(join, three["a"], second), "node a takes it in again")


def is_refused(join: Join, node: LiveNode, client_id: str) -> bool:
    try:
        join(node, client_id=client_id, persistent=True).close()
    except Refused as error:
        return error.code == BANNED
    return False


def test_a_message_is_published_from_the_page(
    three: LiveNetwork, browser: Browser, join: Join, hand: type[Mouse]
) -> None:
    subscriber = join(three["a"], client_id=f"{hand.__name__}-reader")
    subscriber.subscribe(f"from/{hand.__name__}", 1)
    with opened(browser, address(three["b"], "topics")) as page:
        use = hand(page)
        form = page.get_by_role("form", name="Publish")
        use.write(form.get_by_label("Topic"), f"from/{hand.__name__}")
        use.write(form.get_by_label("Payload"), "hello")
        use.press(form.get_by_role("button", name="Publish"))
        expect(form.get_by_role("status")).to_have_text(f"published to from/{hand.__name__}")
    assert subscriber.payloads() == [b"hello"]


def test_who_has_a_token_logs_in_and_out(guarded: LiveNode, browser: Browser, hand: type[Mouse]) -> None:
    with opened(browser, address(guarded), errors=False) as page:  # a browser reports each refusal
        use = hand(page)
        use.write(page.get_by_label("Token"), TOKEN)
        use.press(page.get_by_role("button", name="Log in"))
        expect(page.get_by_text("operator", exact=True)).to_be_visible()
        use.press(page.get_by_role("button", name="Log out"))
        expect(page.get_by_label("Token")).to_be_visible()


def test_people_log_in_with_their_password_and_only_operators_may_give_orders(
    guarded: LiveNode, browser: Browser, join: Join, hand: type[Mouse]
) -> None:
    join(guarded, client_id="lamp")
    with opened(browser, address(guarded, "clients"), errors=False) as page:  # a browser reports each refusal
        use = hand(page)
        use.write(page.get_by_label("User"), OPERATOR)
        use.write(page.get_by_label("Password"), "a guess")
        use.press(page.get_by_role("button", name="Log in"))
        expect(page.get_by_role("alert")).to_have_text("that is not known here")
        assert axe_findings(page) == []
        page.get_by_label("User").clear()
        page.get_by_label("Password").clear()
        for user, role, orders in ((READER, "read only", 0), (OPERATOR, "operator", 1)):
            use.write(page.get_by_label("User"), user)
            use.write(page.get_by_label("Password"), PASSWORD)
            use.press(page.get_by_role("button", name="Log in"))
            expect(page.get_by_text(f"{user} {role}")).to_be_visible()
            expect(page.get_by_role("button", name="lamp", exact=True)).to_be_visible()
            expect(page.get_by_role("button", name="Kick lamp")).to_have_count(orders)
            use.press(page.get_by_role("button", name="Log out"))
            expect(page.get_by_label("Password")).to_be_visible()


def test_messages_are_published_and_watched_in_the_topic_tree_and_stay_text(
    three: LiveNetwork, browser: Browser, join: Join
) -> None:
    join(three["a"], client_id="scribe").publish("tree/retained", b"kept", 1, retain=True)
    with opened(browser, address(three["b"], "topics")) as page:
        page.get_by_role("button", name="Open tree", exact=True).click()
        expect(page.locator('[data-topic="tree/retained"]')).to_contain_text("kept")
        watch = page.get_by_role("form", name="Subscribe")
        watch.get_by_label("Topic filter").fill("tree/#")
        watch.get_by_role("button").click()
        expect(watch).to_contain_text("Nothing has come yet")
        publish = page.get_by_role("form", name="Publish")
        publish.get_by_label("Topic").fill(f"tree/{NASTY.replace('/', '')}")
        publish.get_by_label("Payload").fill(NASTY)
        publish.get_by_label("Topic").press("Enter")
        expect(publish.get_by_role("status")).to_contain_text("published to tree/<img")
        expect(watch.get_by_role("list", name="Messages")).to_contain_text(NASTY)
        expect(page.get_by_role("tree")).to_contain_text(NASTY)
        assert page.locator("img[src=x]").count() == 0
        assert axe_findings(page) == []


def test_a_chosen_topic_is_shown_as_it_changes_with_its_last_messages(
    three: LiveNetwork, browser: Browser, join: Join
) -> None:
    meters = [join(three[name], client_id=f"meter-{name}") for name in "ab"]
    meters[0].publish("live/meter", b"kept", 1, retain=True)
    meters[0].publish("live/meter/battery", b"full", 1, retain=True)
    with opened(browser, address(three["b"], "topics")) as page:
        page.get_by_role("button", name="Open live", exact=True).click()
        row = page.locator('[data-topic="live/meter"]')
        row.get_by_role("button", name="meter", exact=True).click()
        card = page.get_by_role("region", name="Topic", exact=True)
        expect(card).to_contain_text("kept")
        reading = '{"reading":12345678901234567890,"unit":[]}'
        messages = card.get_by_role("list", name="Last messages").get_by_role("listitem")
        meters[1].publish("live/meter", b"not retained", 1)
        expect(messages.first).to_contain_text("not retained")
        meters[0].publish("live/meter", reading.encode(), 1)
        expect(messages.first).to_contain_text('"reading": 12345678901234567890,')
        expect(card).to_contain_text("not retained")
        expect(card.locator("pre").first).to_have_text("kept")
        expect(card.locator("pre").nth(1)).to_have_text('{\n  "reading": 12345678901234567890,\n  "unit": []\n}')
        for shown in ("retained", "kept", reading, "at least 2 topics"):
            expect(row).to_contain_text(shown)
        for number in range(11):
            meters[number % 2].publish("live/meter", b"message %d" % number, 1)
        expect(messages).to_have_count(10)
        expect(card).to_contain_text("message 10")
        expect(card).not_to_contain_text("message 0")
        assert axe_findings(page) == []


def test_a_large_tree_is_walked_by_arrow_keys_and_entered_at_a_prefix(
    three: LiveNetwork, browser: Browser, join: Join
) -> None:
    gardener = join(three["a"], client_id="gardener")
    for number in range(205):
        gardener.publish(f"many/{number:03}", b"%d" % number, 1, retain=True)
    gardener.publish("many/000/below", b"deep", 1, retain=True)
    with opened(browser, address(three["b"], "topics")) as page:
        prefix = page.get_by_label("Go to topic or prefix")
        prefix.fill("many/204")
        prefix.press("Enter")
        expect(page.get_by_role("region", name="Topic", exact=True)).to_contain_text("204")
        prefix.fill("many/")
        prefix.press("Enter")
        chosen = page.locator('[role="treeitem"][aria-selected="true"]')
        expect(page.locator("[data-path]")).to_have_count(200)
        page.get_by_role("tree").focus()
        for key, topic in (
            ("ArrowDown", "many/000"),
            ("ArrowDown", "many/001"),
            ("ArrowUp", "many/000"),
            ("ArrowRight", "many/000"),  # opens it
            ("ArrowRight", "many/000/below"),
            ("ArrowLeft", "many/000"),
            ("Enter", "many/000"),  # closes it
            ("End", "many/199"),
            ("Home", "many/000"),
        ):
            page.keyboard.press(key)
            expect(chosen).to_have_attribute("data-path", topic)
            expect(page.get_by_role("tree")).to_have_attribute("aria-activedescendant", re.compile("^topic-"))
            if key == "ArrowRight":
                expect(page.locator('[data-path="many/000/below"]')).to_be_visible()
        expect(page.locator('[data-path="many/000/below"]')).to_have_count(0)
        expect(page.get_by_role("region", name="Topic", exact=True)).to_contain_text("many/000")
        assert axe_findings(page) == []


def test_a_hidden_tab_does_not_ask_for_messages_and_has_them_when_it_is_seen_again(
    three: LiveNetwork, browser: Browser, join: Join
) -> None:
    scribe = join(three["a"], client_id="hidden-scribe")
    with opened(browser, address(three["b"], "topics")) as page:
        watch = page.get_by_role("form", name="Subscribe")
        watch.get_by_label("Topic filter").fill("while/hidden")
        watch.get_by_role("button").click()
        expect(watch).to_contain_text("Nothing has come yet")
        asked: list[str] = []
        hide = """isHidden => {
            Object.defineProperty(document, "hidden", {get: () => isHidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(hide, True)
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate(
            """() => new Promise(done => {
                let left = 3;
                const source = new EventSource("/dashboard/events");
                source.addEventListener("picture", () => { if (--left === 0) { source.close(); done(); } });
            })"""
        )
        assert [url for url in asked if not url.endswith("/events")] == []
        scribe.publish("while/hidden", b"you missed me", 1)
        page.evaluate(hide, False)
        expect(watch.get_by_role("list", name="Messages")).to_contain_text("you missed me")


def test_an_expression_is_explained_as_it_is_typed_and_settings_hide_secrets(
    three: LiveNetwork, guarded: LiveNode, browser: Browser
) -> None:
    with opened(browser, address(three["a"], "computing")) as page:
        field = page.get_by_role("textbox", name="Expression")
        field.fill("$AVG/cellar/+/damp")
        explained = page.get_by_role("region", name="Explain an expression")
        expect(explained).to_contain_text("cellar/+/damp")
        expect(explained).to_contain_text("$AVG: one number")
        field.fill("$AVGG/room")
        expect(explained.get_by_role("status")).to_contain_text("$AVGG")
        go(page, "settings")
        page.get_by_label("Node").select_option("c")
        expect(page.get_by_role("region", name="Settings")).to_contain_text("network.strategy")
    with opened(browser, address(guarded, "settings"), errors=False) as page:
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_label("Token").press("Enter")
        settings = page.get_by_role("region", name="Settings")
        expect(settings).to_contain_text("admin.bind")
        assert TOKEN not in settings.inner_text()


def test_names_of_strangers_stay_text_on_every_page(three: LiveNetwork, browser: Browser, join: Join) -> None:
    """Identifiers, user names, topics and filters; also where the map draws them."""
    nasty = join(three["a"], client_id=NASTY, persistent=True, username=NASTY)
    nasty.subscribe(NASTY, 1)
    nasty.publish(NASTY, NASTY, 1, retain=True)
    with opened(browser, address(three["b"])) as page:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        expect(page.locator('[data-node="a"]')).to_be_visible()
        ask(three["b"].admin, "/move", None, {"client": NASTY, "to": "c"})
        expect(page.get_by_role("list", name="Moves").get_by_text("<img src=x").first).to_be_visible()
        for name in PAGES:
            go(page, name)
            expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(name, re.IGNORECASE))
            if name == "clients":
                page.get_by_label("Identifier or user").fill("onerror")
                page.get_by_role("button", name=NASTY, exact=True).click()
                expect(page.get_by_role("region", name=f"Client {NASTY}")).to_contain_text(NASTY)
                expect(page.get_by_role("cell", name=NASTY).first).to_be_visible()
            assert page.locator("img[src=x]").count() == 0, name
            assert page.locator("main script").count() == 0, name
        assert dialogs == []


def test_wills_stay_text_in_the_details_of_a_client_and_in_the_topic_tree(
    three: LiveNetwork, browser: Browser, join: Join
) -> None:
    topic = f"wills/{NASTY.replace('/', '')}"
    mortal = join(three["a"], client_id="mortal", will=Will(topic, NASTY.encode(), 1, retain=True))
    with opened(browser, address(three["b"], "clients")) as page:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        page.get_by_label("Identifier or user").fill("mortal")
        page.get_by_role("button", name="mortal", exact=True).click()
        expect(page.get_by_role("region", name="Client mortal")).to_contain_text(topic)
        assert page.locator("img[src=x]").count() == 0
        mortal.vanish()
        go(page, "topics")
        page.get_by_role("button", name="Open wills", exact=True).click()
        expect(page.get_by_role("tree")).to_contain_text(NASTY)
        page.get_by_role("button", name=topic.removeprefix("wills/"), exact=True).click()
        expect(page.get_by_role("region", name="Topic", exact=True)).to_contain_text(NASTY)
        assert page.locator("img[src=x]").count() == 0
        assert page.locator("main script").count() == 0
        assert dialogs == []


def test_the_page_says_when_its_node_is_gone_and_lives_on_when_it_is_back(
    start_node: Callable[[str], LiveNode], browser: Browser
) -> None:
    node = start_node('[admin]\nbind = "127.0.0.1:0"\n')
    with opened(browser, address(node), errors=False) as page:
        expect(page.get_by_role("status")).to_have_text("live")
        node.kill()
        expect(page.get_by_role("status")).to_have_text(re.compile("no connection"))
        node.start()
        expect(page.get_by_role("status")).to_have_text("live")
        # Its logins ended with it; the page has a new one as soon as it needs it.
        go(page, "topics")
        publish = page.get_by_role("form", name="Publish")
        publish.get_by_label("Topic").fill("after/the/restart")
        publish.get_by_label("Topic").press("Enter")
        expect(publish.get_by_role("status")).to_have_text("published to after/the/restart")


def test_a_node_that_dies_is_shown_as_missing_and_comes_back(three: LiveNetwork, browser: Browser) -> None:
    with opened(browser, address(three["b"])) as page:
        expect(page.locator('[data-node="c"]')).to_be_visible()
        three["c"].kill()
        expect(page.locator('[data-other="c"]')).to_contain_text("not reachable")
        expect(page.locator('[data-node="c"]')).to_have_count(0)
        page.get_by_role("link", name=re.compile("^[0-9]+ alarms?$")).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Alarms")
        expect(page.get_by_text("node c cannot be reached").first).to_be_visible()
        three["c"].start()
        go(page, "map")
        expect(page.locator('[data-node="c"]')).to_be_visible()
