"""A supervisor of stubs, as a program: `supervised.py PLAN HOME`.

PLAN is JSON: `{"stages": [[seconds of grace, {name: behaviour}], …]}` or `{"once": behaviour, "grace": seconds}`. It
writes `pids {…}` after each start of a child, `all are ready`, and `done` after the end of a single task. While the
file HOME/full exists, the ids cannot be written, as on a full disk. SIGUSR2 makes it retire; its stages then drain for
`"drain"` seconds.
"""

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from service.processes.child_process import Child
from service.processes.listening import stopped_by_signals
from service.processes.private_servers.home import Home, HomeLock
from service.processes.supervisor import Stage, Supervisor, run_once

STUB = Path(__file__).with_name("stub_child.py")


def stub(name: str, does: str, listener: socket.socket | None = None) -> Child:
    """Return a stub that receives a secret, and nothing of this process' environment."""
    message = {"does": does, "secret": "tell nobody"}
    return Child(name, (sys.executable, "-I", "-S", str(STUB), name), {"PATH": os.defpath}, message, listener)


def report(event: str) -> None:
    """Write one line to standard output in a single call."""
    os.write(1, f"{event}\n".encode())


def main() -> None:
    plan = json.loads(sys.argv[1])
    home = Home(Path(sys.argv[2]))
    home.prepare()
    lock = HomeLock(home)
    with stopped_by_signals() as hand_over, socket.create_server(("127.0.0.1", 0)) as listener:
        if "once" in plan:
            run_once(stub("once", plan["once"]), plan["grace"])
            report("done")
            return
        stages = [
            Stage([stub(name, does, listener) for name, does in stubs.items()], grace, plan.get("drain", 0.0))
            for grace, stubs in plan["stages"]
        ]

        def report_pids(pids: Mapping[str, int]) -> None:
            if (home.path / "full").exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            report(f"pids {json.dumps(pids)}")

        supervisor = Supervisor(stages, on_ready=lambda: report("all are ready"), on_start=report_pids)
        hand_over(supervisor.stop)
        signal.signal(signal.SIGUSR2, lambda number, frame: supervisor.retire())
        supervisor.run()
    lock.release()


if __name__ == "__main__":
    main()
