"""A supervisor's child that only reports events: `stub_child.py NAME DESCRIPTOR`.

The member `does` of the message on its channel sets its behaviour:

    serve       reports ready, and ends with status 0 at SIGTERM, but not at SIGUSR1
    wait        the same, without reporting ready
    stay        reports ready, and ignores SIGTERM
    refuse      ends with status 2 before it is ready
    fail        ends with the status of a temporary failure before it is ready
    hang up     closes its channel, and then does as `wait` does
    do          ends with status 0
    show        writes the secrets and descriptors that it can see, then does as `serve` does
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}


def report(event: str) -> None:
    """Write one line to standard output in a single call."""
    os.write(1, f"{sys.argv[1]} {event}\n".encode())


def descriptors() -> dict[str, str]:
    """Return this process' open descriptors beyond its standard streams."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        if int(link.name) > 2:
            try:
                found[link.name] = str(link.readlink())
            except FileNotFoundError:
                continue  # the listing's own descriptor
    return found


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    channel = socket.socket(fileno=int(sys.argv[2]))
    message = json.loads(channel.makefile().readline())
    does = message["does"]
    report(f"started {os.getpid()}")
    if does == "refuse":
        raise SystemExit(2)
    if does == "fail":
        raise SystemExit(os.EX_TEMPFAIL)
    if does == "do":
        return
    if does == "show":
        seen = {"message": message, "arguments": sys.argv, "environment": dict(os.environ), "open": descriptors()}
        report(f"shows {json.dumps(seen)}")
    if does == "hang up":
        channel.close()
        report("hung up")
    if does in ("serve", "stay", "show"):
        report("is ready")
        channel.sendall(b"ready\n")
    while True:
        number = signal.sigwait({signal.SIGINT} if does == "stay" else SIGNALS)
        report(f"got {signal.Signals(number).name}")
        if number != signal.SIGUSR1:
            break


if __name__ == "__main__":
    main()
