"""Credential plugins: the command that a kubeconfig user's `exec` names.

The protocol is `client.authentication.k8s.io`: the plugin reads KUBERNETES_EXEC_INFO and writes an ExecCredential. A
plugin runs without a terminal, since a server has none; one that must ask a person is refused.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import msgspec
from kubernetes.aio.config import ConfigException

EXEC_TIMEOUT = 60.0
"""Seconds a plugin may take; a login that waits for a person takes longer and is not ours to make."""

_MAX_HINT = 200


class ExecStatus(msgspec.Struct, rename="camel", frozen=True):
    """What a plugin gave: a token, or a client certificate with its key, both PEM, or all three."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    kind: str
    api_version: str
    status: ExecStatus


async def run_exec_plugin(exec_config: Mapping[str, Any], cluster: Mapping[str, Any]) -> ExecStatus:
    """Runs the plugin and returns what it gave. Cancelling kills it.

    Args:
        exec_config: the user's `exec` section.
        cluster: the cluster's section, told to a plugin that asks for it by `provideClusterInfo`.

    Raises:
        ConfigException: it cannot be started, fails, takes longer than `EXEC_TIMEOUT`, or gives nothing usable. The
            message ends with the last line the plugin wrote to stderr; never with anything from stdout.
    """
    command, api_version = exec_config.get("command"), exec_config.get("apiVersion")
    if not command or not api_version:
        raise ConfigException("exec plugin without command or apiVersion")
    if exec_config.get("interactiveMode") == "Always":
        raise ConfigException(f"exec plugin {command} needs a terminal (interactiveMode: Always)")
    argv = [str(command), *map(str, exec_config.get("args") or ())]
    output = await _run(argv, _environment(exec_config, cluster, api_version), exec_config.get("installHint"))
    try:
        credential = msgspec.json.decode(output, type=_ExecCredential)
    except msgspec.MsgspecError:
        raise ConfigException(f"exec plugin {command} wrote no ExecCredential") from None
    if credential.kind != "ExecCredential" or credential.api_version != api_version:
        raise ConfigException(f"exec plugin {command} answered in another API version than {api_version}")
    status = credential.status
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise ConfigException(f"exec plugin {command} gave a certificate without key, or a key without certificate")
    if not status.token and not status.client_certificate_data:
        raise ConfigException(f"exec plugin {command} gave neither a token nor a client certificate")
    return status


async def _run(argv: list[str], environment: Mapping[str, str], install_hint: str | None) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f"; {' '.join(install_hint.split())[:_MAX_HINT]}" if install_hint else ""
        raise ConfigException(f"exec plugin {argv[0]} cannot be started: {error.strerror}{hint}") from None
    try:
        async with asyncio.timeout(EXEC_TIMEOUT):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        raise ConfigException(f"exec plugin {argv[0]} took longer than {EXEC_TIMEOUT:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = stderr.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        raise ConfigException(f"exec plugin {argv[0]} ended with code {process.returncode}: {last[:_MAX_HINT]}")
    return stdout


def _environment(exec_config: Mapping[str, Any], cluster: Mapping[str, Any], api_version: str) -> dict[str, str]:
    spec: dict[str, Any] = {"interactive": False}
    if exec_config.get("provideClusterInfo"):
        names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
        spec["cluster"] = {name: cluster[name] for name in names if name in cluster}
    info = {"apiVersion": api_version, "kind": "ExecCredential", "spec": spec}
    added = {entry["name"]: str(entry["value"]) for entry in exec_config.get("env") or ()}
    return {**os.environ, **added, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
