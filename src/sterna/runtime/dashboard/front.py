"""The files of the page, and the headers under which a browser takes them: nothing from elsewhere, nothing inline."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from sterna.runtime.admin.site import Answer, text

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text becomes markup or code, whatever a script is talked into.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SECURITY = (
    ("Content-Security-Policy", POLICY),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), microphone=(), geolocation=()"),
)
FILES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def front() -> Answer:
    """The page itself: it holds no data, so everybody may have it."""
    found = file("index.html")
    return found._replace(headers=(*found.headers, ("Vary", "Accept")))


@cache
def file(name: str) -> Answer:
    try:
        body = files("sterna.runtime.dashboard").joinpath("assets", name).read_bytes()
    except OSError:
        return text(503, f"{name} is missing: the dashboard was not built; run: make dashboard\n")
    return Answer(200, body, FILES[name], SECURITY)
