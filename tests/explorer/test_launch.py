"""The command: from arguments to a running server, and one line where that fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from messagenet import InputError, cli
from messagenet import explorer as explorer_package
from messagenet.explorer import launch
from messagenet.explorer.launch import is_loopback, listen
from messagenet.models import UnaryNet


@pytest.fixture
def model(tmp_path):
    return UnaryNet("tiny", 3, hidden=8).save(tmp_path / "small")


def complaint(monkeypatch, capsys, *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["messagenet", "serve", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    return error


def test_the_command_serves_until_it_is_interrupted(model):
    command = [sys.executable, "-m", "messagenet", "serve", "--model", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = line.split()[2]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address + "models", timeout=30) as answer:
            assert json.load(answer)["default"] == "small"
        os.kill(process.pid, signal.SIGINT)
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [(line["event"], line["path"], line["status"]) for line in lines] == [("request", "/models", 200)]


def test_a_port_in_use(model, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = complaint(monkeypatch, capsys, "--model", model, "--port", port)
    assert f"port {port} is in use; choose another with --port" in error


def test_ports_and_hosts_that_do_not_exist(monkeypatch, capsys):
    assert "give one from 1024 to 65535 with --port" in complaint(monkeypatch, capsys, "--port", 70000)
    assert "--host" in complaint(monkeypatch, capsys, "--host", "203.0.113.7", "--port", 0)
    assert "--host" in complaint(monkeypatch, capsys, "--host", "no such host", "--port", 0)


def test_models_and_samples_that_do_not_exist(model, tmp_path, monkeypatch, capsys):
    assert "holds no model" in complaint(monkeypatch, capsys, "--port", 0, "--model", tmp_path / "none")
    arguments = ["--port", 0, "--model", model, "--samples", tmp_path / "none"]
    assert "--samples" in complaint(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "python_multipart", "prometheus_client"])
def test_without_the_extra(monkeypatch, capsys, package):
    for name in [name for name in sys.modules if name.startswith("messagenet.explorer.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert 'pip install "messagenet[serve]"' in complaint(monkeypatch, capsys, "--port", 0)


@pytest.mark.parametrize(
    ("arguments", "terminal", "shown"),
    [([], True, True), ([], False, False), (["--no-open"], True, False), (["--open"], False, True)],
)
def test_the_browser_opens_on_a_terminal_or_when_asked(monkeypatch, arguments, terminal, shown):
    asked = []
    monkeypatch.setattr(explorer_package, "serve", lambda models, **options: asked.append(options["open_browser"]))
    monkeypatch.setattr(sys, "argv", ["messagenet", "serve", *arguments])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    with pytest.raises(SystemExit):
        cli.main()
    assert asked == [shown]


def test_a_free_port_is_found():
    with listen("127.0.0.1", 0) as first, listen("127.0.0.1", 0) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
    with pytest.raises(InputError, match="--host"):
        listen("999.1.1.1", 0)


def test_who_can_reach_an_address():
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("10.0.0.5")
    assert launch.page_url("localhost", 1) == "http://localhost:1/"
