"""From arguments to a running server: a socket first, then the models, then uvicorn until it is interrupted."""

from __future__ import annotations

import errno
import logging
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
from messagenet.explorer.guards import WILDCARDS, PatientProtocol, as_address
from messagenet.explorer.logs import LOGGER, JsonLines, Metrics
from messagenet.explorer.models import ServedModel, load_models, open_samples

BACKLOG = 128
SHUTDOWN_SECONDS = 5


def run(folders: Sequence[Path], host: str, port: int, samples: Path | None, open_browser: bool) -> None:
    """Serves models until interrupted; see `messagenet.explorer.serve`."""
    with listening(host, port) as listener:
        models = load_models(folders)
        explorer = Explorer(models, limits_for(models), Metrics())
        app = create_app(explorer, open_samples(samples), host)
        log_as_json()
        address = url(host, listener.getsockname()[1])
        print(f"message explorer: {address} (Ctrl-C ends it)", flush=True)
        if not is_loopback(host):
            print(f"everyone who can reach {host} can use it", file=sys.stderr)
        if open_browser:
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()  # the socket listens already
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        with suppress(KeyboardInterrupt):  # how a server is meant to end
            uvicorn.Server(config).run(sockets=[listener])


def limits_for(models: Sequence[ServedModel]) -> Limits:
    """The usual bounds, with pictures reduced to what all of the models are for."""
    sides = [model.net.longest_side for model in models if model.net.longest_side is not None]
    return Limits(side=min([Limits.side, *sides]))


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or one line that says which option to change."""
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} does not exist; give one from 1024 to 65535 with --port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"{host} is no address ({error.strerror}); give another with --host") from None
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from None
    return listener


def _refused(host: str, port: int, error: OSError) -> InputError:
    match error.errno:
        case errno.EADDRINUSE:
            return InputError(f"port {port} is in use; choose another with --port, such as --port {port + 1}")
        case errno.EACCES:
            return InputError(f"port {port} is for the system only; choose one above 1023 with --port")
        case _:
            return InputError(f"cannot listen on {host} ({error.strerror}); give another address with --host")


def url(host: str, port: int) -> str:
    """Where the page is.

    >>> url("::1", 8765), url("0.0.0.0", 80)
    ('http://[::1]:8765/', 'http://127.0.0.1:80/')
    """
    name = "127.0.0.1" if host in WILDCARDS else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    address = as_address(host)
    return host == "localhost" if address is None else address.is_loopback


def log_as_json() -> None:
    """Sends the log of requests, and what goes wrong below it, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.captureWarnings(True)
    for logger, level in (
        (LOGGER, logging.INFO),
        (logging.getLogger("uvicorn"), logging.WARNING),
        (logging.getLogger("py.warnings"), logging.WARNING),
    ):
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # larger pictures are refused anyway
