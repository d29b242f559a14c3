"""One more process that answers for a running Lethe, whose look at heads can be switched off and on.

It runs the application itself. SIGUSR1 makes it answer from the head that it found first, without a look at the
entries; SIGUSR2 makes it look again. It prints the port it listens on once it is ready.

    LETHE_HOME=… python -m benchmarks.performance.service.switched_heads
"""

import signal

from service.embedded import running_servers
from service.observability.logging import configure_logging
from service.processes.api import run
from service.processes.listening import listen
from service.publication.heads import Head, Heads
from service.settings import load_settings

WITHOUT, WITH = signal.SIGUSR1, signal.SIGUSR2


def main() -> None:
    """Answers until stopped."""
    looking, kept = Heads.newest, dict[Heads, Head]()

    def remembered(heads: Heads, least: Head | None = None) -> Head | None:
        if (head := kept.get(heads)) is None and (head := looking(heads, least)) is not None:
            kept[heads] = head
        return head

    def switch(number: int, frame: object) -> None:
        Heads.newest = remembered if number == WITHOUT else looking  # type: ignore[method-assign]

    for number in (WITHOUT, WITH):
        signal.signal(number, switch)
    settings = load_settings()
    servers = running_servers(settings.home)
    if servers is None or servers.api_database_url is None or servers.redis_url is None:
        raise SystemExit(f"No Lethe with private servers runs in {settings.home}. Start one there first.")
    settings = settings.with_servers(database_url=servers.api_database_url, redis_url=servers.redis_url)
    configure_logging(settings.log_format, settings.log_level, process="switched")
    bound = listen("127.0.0.1", 0)
    run(settings, bound, lambda: print(bound.getsockname()[1], flush=True), "switched", 0)


if __name__ == "__main__":
    main()
