"""The command: from arguments to a running server, and one line where that fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import messagenet
from messagenet import InputError, cli
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
    monkeypatch.setattr(launch, "run", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(sys, "argv", ["messagenet", "serve", *arguments])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    with pytest.raises(SystemExit):
        cli.main()
    if not arguments:
        messagenet.serve()  # with the same defaults
    assert asked == [([], "127.0.0.1", 8765, None, None, shown)] * (1 if arguments else 2)


def test_a_model_and_its_longest_side(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(launch, "run", lambda *arguments: asked.append(arguments))
    for one in ("runs/a/best", Path("runs/a/best"), ["runs/a/best"]):
        messagenet.serve(one, longest_side=300)
    monkeypatch.setattr(sys, "argv", ["messagenet", "serve", "--model", "runs/a/best", "--longest-side", "300"])
    with pytest.raises(SystemExit):
        cli.main()
    assert asked == [([Path("runs/a/best")], "127.0.0.1", 8765, None, 300, False)] * 4
    assert "longest_side is 1025; give at most 1024" in complaint(monkeypatch, capsys, "--longest-side", 1025)


def test_a_longest_side_that_is_no_size(model, monkeypatch, capsys):
    error = complaint(monkeypatch, capsys, "--model", model, "--port", 0, "--longest-side", -1)
    assert "longest_side is -1; give a number of pixels, or 0 for any size" in error


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
