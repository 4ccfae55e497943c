"""From arguments to a running server: a socket first, then the models, then uvicorn until it is interrupted."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import warnings
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

import uvicorn
from PIL import Image

from messagenet.errors import InputError
from messagenet.explorer import Limits
from messagenet.explorer.app import create_app
from messagenet.explorer.explorer import Explorer
from messagenet.explorer.guards import WILDCARDS, TimeoutProtocol, parse_address
from messagenet.explorer.logs import LOGGER, JsonFormatter, Metrics
from messagenet.explorer.models import load_models, open_samples

BACKLOG = 128
SHUTDOWN_SECONDS = 5
PRIMITIVE_CACHE = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")  # the default, 1024, takes about 100 MiB


def run(
    folders: Sequence[Path], host: str, port: int, samples: Path | None, longest_side: int | None, open_browser: bool
) -> None:
    """Serves models until interrupted; see `messagenet.explorer.serve`."""
    os.environ.setdefault(*PRIMITIVE_CACHE)
    with listen(host, port) as listener:
        explorer = Explorer(load_models(folders, longest_side), Limits(), Metrics())
        app = create_app(explorer, open_samples(samples), host)
        log_as_json()
        address = page_url(host, listener.getsockname()[1])
        print(f"message explorer: {address} (Ctrl-C to stop)", flush=True)
        if not is_loopback(host):
            print(f"everyone who can reach {host} can use the explorer", file=sys.stderr)
        if open_browser:
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()  # the socket listens already
        config = uvicorn.Config(
            app,
            http=TimeoutProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        with suppress(KeyboardInterrupt):  # Ctrl-C is how a server ends
            uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises `InputError` with the option to change."""
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} does not exist; give one from 1024 to 65535 with --port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"{host} is not an address ({error.strerror}); give another with --host") from None
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        texts = {
            errno.EADDRINUSE: f"port {port} is in use; choose another with --port, such as --port {port + 1}",
            errno.EACCES: f"port {port} is reserved for the system; choose one above 1023 with --port",
        }
        other = f"cannot listen on {host} ({error.strerror}); give another address with --host"
        raise InputError(texts.get(error.errno or 0, other)) from None
    return listener


def page_url(host: str, port: int) -> str:
    """The address of the page.

    >>> page_url("::1", 8765), page_url("0.0.0.0", 80)
    ('http://[::1]:8765/', 'http://127.0.0.1:80/')
    """
    name = "127.0.0.1" if host in WILDCARDS else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    address = parse_address(host)
    return host == "localhost" if address is None else address.is_loopback


def log_as_json() -> None:
    """Logs requests, and warnings of the libraries below, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.captureWarnings(True)
    for logger in (LOGGER, logging.getLogger("uvicorn"), logging.getLogger("py.warnings")):
        logger.handlers = [handler]
        logger.setLevel(logging.INFO if logger is LOGGER else logging.WARNING)
        logger.propagate = False
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # larger images are refused anyway
