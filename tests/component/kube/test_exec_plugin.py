"""Credential plugins, as real processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.config import ConfigException

from federator.kube import exec_plugin
from federator.kube.exec_plugin import ExecStatus, run_exec_plugin
from tests.component.kube.scripted_server import eventually

VERSION = "client.authentication.k8s.io/v1"


def plugin(code: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "command": sys.executable, "args": ["-c", code], **more}


def answering(status: Any, **fields: Any) -> dict[str, Any]:
    credential = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status, **fields}
    return plugin(f"print({json.dumps(json.dumps(credential))})")


async def test_a_token() -> None:
    assert await run_exec_plugin(answering({"token": "t"}), {}) == ExecStatus("t")


async def test_a_certificate() -> None:
    status = {"clientCertificateData": "c", "clientKeyData": "k"}
    assert await run_exec_plugin(answering(status), {}) == ExecStatus(None, "c", "k")


async def test_what_the_plugin_is_told() -> None:
    code = (
        "import json, os, sys; info = os.environ['KUBERNETES_EXEC_INFO'];"
        "token = json.dumps([json.loads(info), os.environ['EXTRA'], os.environ['HOME'], sys.stdin.read()]);"
        f"print(json.dumps({{'apiVersion': '{VERSION}', 'kind': 'ExecCredential', 'status': {{'token': token}}}}))"
    )
    told = plugin(code, env=[{"name": "EXTRA", "value": "x"}], provideClusterInfo=True)
    cluster = {"server": "https://a", "certificate-authority": "/x", "tls-server-name": "n"}
    token = (await run_exec_plugin(told, cluster)).token
    assert token is not None
    assert json.loads(token) == [
        {
            "apiVersion": VERSION,
            "kind": "ExecCredential",
            "spec": {"interactive": False, "cluster": {"server": "https://a", "tls-server-name": "n"}},
        },
        "x",
        os.environ["HOME"],
        "",
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (plugin("import sys; print('hunter2'); sys.exit('first\\nlog in first')"), "code 1: log in first"),
        (plugin("import sys; sys.exit(3)"), "code 3: no message"),
        (plugin("print('hunter2')"), "wrote no ExecCredential"),
        (answering({"token": 5}), "wrote no ExecCredential"),
        (answering({"token": "hunter2"}, kind="Secret"), "another API version"),
        (answering({"token": "hunter2"}, apiVersion="v1alpha1"), "another API version"),
        (answering({}), "neither a token nor a client certificate"),
        (answering({"clientKeyData": "hunter2"}), "a key without certificate"),
        ({"apiVersion": VERSION, "command": "/no/such", "installHint": "get\n it"}, "No such file.*; get it"),
        (plugin("", interactiveMode="Always"), "needs a terminal"),
        ({"command": "x"}, "without command or apiVersion"),
    ],
)
async def test_failures_say_why_and_quote_no_output(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigException, match=message) as caught:
        await run_exec_plugin(config, {})
    assert "hunter2" not in str(caught.value)


async def test_a_plugin_does_not_share_our_stdin() -> None:
    reader, writer = os.pipe()
    stdin = os.dup(0)
    os.dup2(reader, 0)
    try:
        credential = json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": {"token": "t"}})
        async with asyncio.timeout(10):
            await run_exec_plugin(plugin(f"import sys; sys.stdin.read(); print({credential!r})"), {})
    finally:
        os.dup2(stdin, 0)
        for descriptor in (reader, writer, stdin):
            os.close(descriptor)


async def test_much_noise_on_stderr_does_not_stall_it() -> None:
    credential = json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": {"token": "t"}})
    code = f"import sys; sys.stderr.write('x' * 500_000); print({json.dumps(credential)})"
    async with asyncio.timeout(30):
        assert (await run_exec_plugin(plugin(code), {})).token == "t"


SLEEPING = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_cancelling_kills_the_plugin(tmp_path: Path) -> None:
    config = plugin(SLEEPING)
    config["args"].append(str(tmp_path / "pid"))
    running = asyncio.create_task(run_exec_plugin(config, {}))
    file = tmp_path / "pid"
    await eventually(lambda: file.exists() and bool(file.read_text()))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not alive(int(file.read_text())))


async def test_a_plugin_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "EXEC_TIMEOUT", 0.05)
    with pytest.raises(ConfigException, match=r"took longer than 0.05 s"):
        await run_exec_plugin(plugin("import time; time.sleep(60)"), {})
