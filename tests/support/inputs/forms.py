"""Every form of the dashboard, from the templates of its pages."""

import re
from pathlib import Path

from service.web.dashboard import pages
from service.web.dashboard.signing_in import PATH

_FORM = re.compile(r'<form[^>]* method="post" action="([^"]+)"[^>]*>(.*?)</form>', re.DOTALL)
_FIELD = re.compile(r'<(?:input|select|textarea)[^>]* name="(\w+)"')
#: Sent by the script of the log's page, without a form.
_BY_SCRIPT: dict[str, tuple[str, ...]] = {f"{PATH}/log/checks": ("size", "root")}


def forms() -> dict[str, tuple[str, ...]]:
    """Return the field names of each form, except its token, by target path."""
    found = dict(_BY_SCRIPT)
    for template in sorted((Path(pages.__file__).parent / "templates").glob("*.html")):
        for action, inside in _FORM.findall(template.read_text()):
            path = action.replace("{{ path }}", PATH).replace("{{ asked.id }}", "{request_id}")
            found[path] = tuple(dict.fromkeys(one for one in _FIELD.findall(inside) if one != "form_token"))
    return found
