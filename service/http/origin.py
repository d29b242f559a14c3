"""Where a request comes from: this very machine, or elsewhere."""

import re

from starlette.requests import Request

from service.http.addresses import address_of

#: Header fields that proxies add, or clients to look like a proxy.
_FORWARDING = re.compile(
    r"forwarded|via|x-host|x-forwarded\b.*|x-original-.*|cdn-loop|cf-.*|x-envoy-.*|x-appengine-.*"
    r"|.*(client|connecting|originating|real|remote|user)-?(ip|addr)\b.*"
)


def is_from_elsewhere(request: Request) -> bool:
    """Whether a request does not come from this very machine.

    One that a proxy forwarded counts as one from elsewhere, wherever the proxy runs; so does one that names another
    host, as a page does whose name was made to lead here.
    """
    client = request.client
    local = client is not None and _is_loopback(client.host) and _is_loopback(_host_of(request))
    return not local or any(_FORWARDING.fullmatch(name.replace("_", "-")) for name in request.headers)


def _host_of(request: Request) -> str:
    """The host that the request names, without port and brackets; empty when it names none, or several."""
    named = request.headers.getlist("host")
    host = re.fullmatch(r"(\[[^]]*\]|[^:]*)(:\d*)?", named[0]) if len(named) == 1 else None
    return host[1].strip("[]") if host else ""


def _is_loopback(host: str) -> bool:
    address = address_of(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)
