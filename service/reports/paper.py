"""Papers: self-contained pages to read and print, with a QR code that leads to their verification."""

import base64
import functools
import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2
import segno
from markupsafe import Markup

from service.domain import formats
from service.domain.figures import TOTALS
from service.settings import Settings
from service.text import visible

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Paper:
    """An HTML page with its Content-Security-Policy."""

    html: str
    policy: str


def paper(template: str, settings: Settings, /, *, check: str, **values: object) -> Paper:
    """Fill in a template. Its QR code leads to the dashboard path `check` at the configured address."""
    style = _style()
    place = f"{(settings.public_url or '').rstrip('/')}{check}"
    html = (
        _environment()
        .get_template(template)
        .render(style=Markup(style), organisation=settings.organisation, place=place, code=_code(place), **values)
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return Paper(html, policy)


def environment(templates: Path) -> jinja2.Environment:
    """Return a template environment with the settings shared by pages and papers."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Values already marked safe are Markup, not str, and stay as they are.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    made.filters |= {"number": formats.number, "share": formats.share, "duration": formats.duration}
    made.globals |= {"plural": formats.plural, "TOTALS": TOTALS}
    return made


def _code(text: str) -> Markup:
    """Return `text` as a QR code."""
    return Markup(segno.make(text, error="m", micro=False).svg_inline(omitsize=True, border=0))


@functools.cache
def _environment() -> jinja2.Environment:
    made = environment(_TEMPLATES)
    made.filters |= {
        "day": lambda at: formats.day(moment(at)),
        "date": lambda at: formats.moment(moment(at))[:10],
        "minute": lambda at: formats.minute(moment(at)),
        "moment": lambda at: f"{formats.moment(moment(at))} UTC",
        "groups": formats.in_groups,
    }
    return made


def moment(at: datetime | str) -> datetime:
    """Parse a time as leaves store it; return datetimes unchanged."""
    return datetime.fromisoformat(at) if isinstance(at, str) else at


@functools.cache
def _style() -> str:
    return (_TEMPLATES / "paper.css").read_text()
