"""`sterna adaptation`: questions and orders to a coordinator."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from sterna.cli.admin_client import AdminOption, JsonOption, TokenOption, ask, named, shown

DEFAULT_COORDINATOR = "127.0.0.1:9887"

app = typer.Typer(help="Ask a coordinator what it knows and does, or have it do nothing.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of a gateway or worker.")]


@app.command("status")
def status(
    admin: AdminOption = DEFAULT_COORDINATOR, token_file: TokenOption = None, as_json: JsonOption = False
) -> None:
    """The leader, the nodes that run, the last decisions."""
    found = ask(admin, "/status", token_file)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    leader = "leads" if found["leads"] else f"stands by; {found['leader'] or 'nobody'} leads"
    print(f"coordinator {shown(found['coordinator'])} {leader}, region {found['region']}, term {found['term']}")
    for key, words in (("dry_run", "dry run: it gives no orders"), ("frozen", "frozen: nothing changes")):
        if found[key]:
            print(words)
    for one in found["workers"]:
        fixed = " fixed" if one["fixed"] else ""
        trouble = f"  ! {shown(one['trouble'])}" if one["trouble"] else ""
        clients = f"{one['gateways']} gateways, {one['others']} others"
        print(f"  {one['worker']:<20} {one['state']:<9}{fixed} {clients}{trouble}")
    for name in found["lost"]:
        print(f"  {name:<20} lost")
    print(f"{found['gateways']} gateways, {found['unserved']} of them at no known node")
    for one in found["decisions"][:10]:
        outcome = f"  not ordered: {one['not_ordered']}" if one["not_ordered"] else ""
        print(f"  {one['seconds_ago']:>8.1f} s ago  {one['decision']}{outcome}")


@app.command("pressure")
def pressure(
    admin: AdminOption = DEFAULT_COORDINATOR, token_file: TokenOption = None, as_json: JsonOption = False
) -> None:
    """Pressure on every worker (start above `up`) and node (stop below `down`)."""
    found = ask(admin, "/pressure", token_file)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"model {found['model']}, up {found['up']:g}, down {found['down']:g}")
    for kind in ("workers", "nodes"):
        for name, value in sorted(found[kind].items(), key=lambda item: -(item[1] if item[1] is not None else 1e18)):
            print(
                f"  {name:<20} {'off' if kind == 'workers' else 'runs':<5} {'inf' if value is None else f'{value:g}'}"
            )


@app.command("explain")
def explain(
    name: NameArgument,
    admin: AdminOption = DEFAULT_COORDINATOR,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why a gateway or worker is where it is."""
    query = urlencode({"name": named(name, "the name")})
    found: dict[str, Any] = ask(admin, f"/explain?{query}", token_file)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['kind']} {shown(name)}: {found.get('node') or found.get('state') or 'at no known node'}")
    for judgement in found["judgements"]:
        print(f"  {judgement}")
    if found["waits"]:
        print(f"  {found['waits']}")
    for one in found.get("nearest", ()):
        how = "measured" if one["measured"] else "estimated"
        print(f"  {one['ms']:>9.3f} ms {how:<9} {one['worker']} ({one['state']})")


@app.command("distance")
def distance(
    one: NameArgument,
    other: NameArgument,
    admin: AdminOption = DEFAULT_COORDINATOR,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """The round trip between two gateways or workers, measured or estimated."""
    query = urlencode({"from": named(one, "the name"), "to": named(other, "the name")})
    found = ask(admin, f"/distance?{query}", token_file)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    measured = "not measured" if found["measured_ms"] is None else f"measured {found['measured_ms']:g} ms"
    print(f"estimated {found['estimated_ms']:g} ms (errors {found['errors'][0]:g}, {found['errors'][1]:g}), {measured}")


@app.command("freeze")
def freeze(admin: AdminOption = DEFAULT_COORDINATOR, token_file: TokenOption = None) -> None:
    """Have a region's leader order nothing, and all that follow it, until `thaw`."""
    ask(admin, "/freeze", token_file, {"frozen": True})
    print("frozen: nothing changes until `sterna adaptation thaw`")


@app.command("thaw")
def thaw(admin: AdminOption = DEFAULT_COORDINATOR, token_file: TokenOption = None) -> None:
    """Take a freeze back."""
    ask(admin, "/freeze", token_file, {"frozen": False})
    print("the coordinator acts again")
