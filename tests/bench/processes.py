"""The processes of the relay bench: the workers and the proxies, started, pinned, measured and ended.

Proxies run on the first core that we may use and everything else on the rest, so that what is measured never
waits for what measures it. With one core, nothing is pinned.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

START_SECONDS = 30
END_SECONDS = 5
NUM_WORKERS = 4
NGINX_CONFIGURATION = Path(__file__).with_name("nginx.conf.in")


def cores() -> tuple[set[int], set[int]]:
    """(cores for a proxy, cores for the load)."""
    usable = sorted(os.sched_getaffinity(0))
    return (set(usable[:1]), set(usable[1:])) if len(usable) > 1 else (set(usable), set(usable))


PROXY_CORES, LOAD_CORES = cores()


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """User and system time of a process and its living descendants since they started."""
    root = psutil.Process(process.pid)
    times = [member.cpu_times() for member in (root, *root.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def resident_bytes(process: subprocess.Popen[bytes]) -> int:
    """Memory that the process and its descendants do not share with others (the sum of their USS)."""
    root = psutil.Process(process.pid)
    return sum(member.memory_full_info().uss for member in (root, *root.children(recursive=True)))


@contextlib.contextmanager
def running(command: list[str], on_cores: set[int], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a child process on these cores; it and all its descendants have ended afterwards."""
    process = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, on_cores), **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, as its own children may have to be ended with it; kill what is left after a while."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    process.kill()
    process.wait()
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    if process.stdout:
        process.stdout.close()


@contextlib.contextmanager
def running_workers(num_workers: int = NUM_WORKERS, *, close: bool = False) -> Iterator[list[int]]:
    """The bench workers, one process that plays them all; yields their ports. With `close` they keep no
    connection for a second request."""
    command = [sys.executable, "-m", "tests.bench.worker", str(num_workers), *(["close"] if close else [])]
    with running(command, LOAD_CORES, stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield [int(port) for port in process.stdout.readline().split()]


@contextlib.contextmanager
def running_nginx(
    worker_ports: Sequence[int], directory: Path
) -> Iterator[tuple[int, int, subprocess.Popen[bytes]]]:
    """nginx before the workers; yields its plain port, its port with pooled connections, and its process."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        raise SystemExit("the relay bench compares with nginx, which is not installed: apt-get install nginx")
    port, pooled_port = free_port(), free_port()
    servers = " ".join(f"server 127.0.0.1:{worker_port};" for worker_port in worker_ports)
    values = {"DIRECTORY": directory, "PORT": port, "POOLED_PORT": pooled_port, "SERVERS": servers}
    text = NGINX_CONFIGURATION.read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    configuration = directory / "nginx.conf"
    configuration.write_text(text)
    with running([nginx, "-p", str(directory), "-c", str(configuration)], PROXY_CORES) as process:
        wait_until_ready(port, process, "/v1/models")
        yield port, pooled_port, process


@contextlib.contextmanager
def running_gateway(
    worker_ports: Sequence[int], *flags: str, as_it_comes: bool = False
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The gateway before the workers; yields its port and process. `as_it_comes`: it logs what it does unless
    told otherwise, and nobody reads it; else warnings alone, which whoever runs the bench sees."""
    port = free_port()
    command = [sys.executable, "-m", "router", "serve", *flags]
    command += [] if as_it_comes else ["--log-level", "warning"]
    command += ["--worker-urls", *urls(worker_ports)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--admin-port", str(free_port())]
    with running(command, PROXY_CORES, stderr=subprocess.DEVNULL if as_it_comes else None) as process:
        wait_until_ready(port, process, "/readyz")
        yield port, process


def urls(worker_ports: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in worker_ports]


def wait_until_ready(port: int, process: subprocess.Popen[bytes], path: str) -> None:
    """Until GET `path` answers 200."""
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended at start with exit code {process.returncode}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        time.sleep(0.05)
    raise SystemExit(f"{process.args} was not ready after {START_SECONDS} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
