"""The page people look at: one file, which asks nobody for anything."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatline import __version__
from flatline.reporters._plain import encodable
from flatline.reporters.html.model import View, data, embedded, view

if TYPE_CHECKING:
    from flatline.record import Recording

HERE = Path(__file__).parent
SCRIPTS = ("vendor/uplot.js", "page.js")
STYLES = ("vendor/uplot.css", "page.css")
SECTIONS = ("head", "findings", "weights", "run", "rules")


def render(recording: Recording, *, live: bool = False) -> str:
    """The whole page. A live one asks the server that it came from for news, and nobody else."""
    seen = view(recording)
    page = template("page").render(
        view=seen,
        data=data(seen),
        live=live,
        policy=policy(SCRIPTS, STYLES, live=live),
        scripts=texts(SCRIPTS),
        styles=texts(STYLES),
        licence=texts(("vendor/uplot.LICENSE",))[0],
        version=__version__,
    )
    return encodable(page)


def news(recording: Recording) -> str:
    """What changes on a live page, as JSON: the written sections as HTML, and the curves."""
    seen = view(recording)
    written = {name: encodable(_section(seen, name)) for name in SECTIONS}
    return f'{{"sections":{embedded(written)},"data":{data(seen)},"running":{str(seen.running).lower()}}}'


def _section(seen: View, name: str) -> str:
    return str(getattr(template("sections").module, name)(seen))


@functools.cache
def template(name: str) -> Any:
    """One of ours, compiled."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    loader = FileSystemLoader(HERE, encoding="utf-8")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["grouped"] = "{:,}".format
    environment.filters["breakable"] = lambda path: Markup("<wbr>").join(re.split(r"(?<=[/_])", path))
    return environment.get_template(f"{name}.html.j2")


@functools.cache
def texts(names: tuple[str, ...]) -> tuple[str, ...]:
    """Files of ours, whole."""
    return tuple((HERE / name).read_text(encoding="utf-8").strip() for name in names)


def policy(scripts: tuple[str, ...], styles: tuple[str, ...], *, live: bool = False) -> str:
    """Nothing is loaded, and only our own scripts and styles are obeyed."""
    obeyed = [" ".join(map(_hash, texts(names))) or "'none'" for names in (scripts, styles)]
    parts = ["default-src 'none'", f"script-src {obeyed[0]}", f"style-src {obeyed[1]}", "img-src data:"]
    parts += ["base-uri 'none'", "form-action 'none'"]
    return "; ".join([*parts, *(["connect-src 'self'"] if live else [])])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
