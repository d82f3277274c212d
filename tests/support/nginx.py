"""nginx before a worker, as a second opinion on what is a request."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (KVGATE_INSTALL=1 make test)")

CONFIGURATION = """
daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port}; {settings}
        location / {{ proxy_pass {worker_url}; proxy_http_version 1.1; proxy_buffering off; }}
    }}
}}
"""


@contextlib.asynccontextmanager
async def nginx(worker_url: str, directory: Path, settings: str = "") -> AsyncIterator[int]:
    """Yields the port. Bodies must fit in memory (16 KiB, or client_body_buffer_size among the settings):
    nginx's worker may not write to `directory`."""
    assert NGINX is not None
    port = _free_port()
    file = directory / "nginx.conf"
    file.write_text(
        CONFIGURATION.format(directory=directory, port=port, worker_url=worker_url, settings=settings)
    )
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(directory), "-c", str(file), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await _until_listening(port)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def _until_listening(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)  # polling another process
            else:
                writer.close()
                return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
