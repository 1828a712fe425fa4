"""Where credentials come from: a kubeconfig context, or the pod the process runs in."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)
from kubernetes.aio.config.kube_config import KubeConfigLoader

import federator
from federator.errors import CredentialsError
from federator.kube.exec_plugin import run_exec_plugin
from federator.kube.kubeconfig import Context, Kubeconfig, Section
from federator.kube.proxy import proxy_from_environment

READ_BUFFER_BYTES = 256 * 1024
"""Bytes of one answer that wait in the process before the socket is no longer read; aiohttp allows twice that.

The official client's 2 MiB would come to 400 MiB for 100 watches that are behind.
"""

PROVIDER_TIMEOUT = 60.0
"""Seconds an auth provider, such as an OIDC issuer, may take to renew a token."""

_CERTIFICATE, _KEY = "tls.crt", "tls.key"

_LOADING_ERRORS = (
    ConfigException,
    OSError,  # files; ssl.SSLError for a certificate without its key
    ValueError,  # base64, JWT
    TypeError,  # a setting of another shape than the official loader expects
    KeyError,  # a missing setting of a plugin or an OIDC provider
    aiohttp.ClientError,  # an OIDC issuer
)


class CredentialsSource(Protocol):
    """Gives clients of one cluster, each with the credentials of that moment."""

    @property
    def name(self) -> str:
        """How messages call it: the context."""
        ...

    async def connect(self) -> ApiClient:
        """Loads the credentials anew and returns an unused client for them, to be closed by the caller.

        Raises:
            CredentialsError: they cannot be loaded; the cause holds no secret.
        """
        ...


class KubeconfigCredentials:
    """A context of the kubeconfig, read anew with every `connect`, so rotated files and plugins are followed."""

    def __init__(self, context: str | None = None, path: str | Path | None = None) -> None:
        self._context = context
        self._path = path

    @property
    def name(self) -> str:
        """The context's name."""
        return self._context or "current context"

    async def connect(self) -> ApiClient:
        """See `CredentialsSource.connect`. Cancelling kills a running plugin."""
        context = await asyncio.to_thread(self._read)
        configuration = Configuration()
        try:
            async with _user_of(context) as user:
                loader = _loader(context, user)
                if loader.provider is not None:
                    async with asyncio.timeout(PROVIDER_TIMEOUT):
                        await loader.load_and_set(configuration)
                else:
                    await asyncio.to_thread(_load_from_files, loader, configuration)
                return await asyncio.to_thread(_api_client, configuration)
        except _LOADING_ERRORS as error:
            raise CredentialsError(context.name, _cause(error)) from None

    def _read(self) -> Context:
        return Kubeconfig.load(self._path).context(self._context)


class InClusterCredentials:
    """The service account of the pod the process runs in; the token is read anew with every `connect`."""

    name = "in-cluster"

    def __init__(
        self, *, token_file: str | Path = SERVICE_TOKEN_FILENAME, ca_file: str | Path = SERVICE_CERT_FILENAME
    ) -> None:
        self._token_file = token_file
        self._ca_file = ca_file

    async def connect(self) -> ApiClient:
        """See `CredentialsSource.connect`."""
        try:
            return await asyncio.to_thread(self._connect)
        except _LOADING_ERRORS as error:
            raise CredentialsError(self.name, _cause(error)) from None

    def _connect(self) -> ApiClient:
        configuration = Configuration()
        # The loader's own refreshing reads the file on the event loop, once a minute; ours follows a 401.
        loader = InClusterConfigLoader(str(self._token_file), str(self._ca_file), try_refresh_token=False)
        loader.load_and_set(configuration)
        return _api_client(configuration)


@asynccontextmanager
async def _user_of(context: Context) -> AsyncIterator[Section]:
    """The context's user; what a plugin gives takes the place of the plugin, its certificate as files for a while."""
    if "exec" not in context.user:
        yield context.user
        return
    # The official loader logs a plugin's failure and goes on without credentials, and has no time limit.
    status = await run_exec_plugin(context.user["exec"], context.cluster)
    user = {"token": status.token} if status.token else {}
    if not (status.client_certificate_data and status.client_key_data):
        yield user
        return
    # Python loads a client certificate from files only; the directory is its owner's alone.
    directory = await asyncio.to_thread(_write_certificate, status.client_certificate_data, status.client_key_data)
    try:
        names = {"client-certificate": _CERTIFICATE, "client-key": _KEY}
        yield user | {name: str(Path(directory.name, file)) for name, file in names.items()}
    finally:
        await asyncio.to_thread(directory.cleanup)


def _write_certificate(certificate: str, key: str) -> tempfile.TemporaryDirectory[str]:
    directory = tempfile.TemporaryDirectory(prefix="federator-")
    Path(directory.name, _CERTIFICATE).write_text(certificate)
    Path(directory.name, _KEY).write_text(key)
    return directory


def _loader(context: Context, user: Section) -> KubeConfigLoader:
    return KubeConfigLoader(
        {
            "current-context": context.name,
            "contexts": [{"name": context.name, "context": {"cluster": context.name, "user": context.name}}],
            "clusters": [{"name": context.name, "cluster": context.cluster}],
            "users": [{"name": context.name, "user": user}],
        }
    )


def _load_from_files(loader: KubeConfigLoader, configuration: Configuration) -> None:
    """Runs the loader where there is no provider to ask: it only reads files, so not on the event loop.

    Such a coroutine never waits, so its first step is its last and it needs no loop.
    """
    loading = loader.load_and_set(configuration)
    try:
        loading.send(None)
    except StopIteration:
        return
    loading.close()
    raise ConfigException("the official client waits for something where only files should be read")


def _api_client(configuration: Configuration) -> ApiClient:
    """Builds a client; reads certificates, so it blocks for some milliseconds."""
    configuration.api_key = {name: _one_line(key) for name, key in configuration.api_key.items()}
    configuration.proxy = configuration.proxy or proxy_from_environment(configuration.host, os.environ)
    if configuration.proxy and not configuration.proxy.startswith(("http://", "https://")):
        raise ConfigException("its proxy is not http or https; SOCKS proxies are not supported")
    # Every watch holds a connection, and the number of watches is bounded by the collected types.
    configuration.connection_pool_maxsize = 0
    # Python 3.13's strict mode refuses CAs that Go, and so kubectl, accepts; chain and host name are still checked.
    configuration.disable_strict_ssl_verification = True
    # trust_env would also send credentials from ~/.netrc; proxies are decided above.
    session: dict[str, Any] = {"trust_env": False, "read_bufsize": READ_BUFFER_BYTES}
    configuration.client_session_kwargs = session
    api_client = ApiClient(configuration)
    api_client.user_agent = f"federator/{federator.__version__}"
    return api_client


def _one_line(key: str) -> str:
    # A token file may end with a newline, which no header can carry.
    return key.strip()


def _cause(error: Exception) -> str:
    match error:
        case ConfigException():
            return str(error)
        case aiohttp.ClientError():
            return "the OIDC issuer does not answer as it should"
        case TimeoutError():
            return f"the auth provider did not answer within {PROVIDER_TIMEOUT:g} s"
        case KeyError():
            return f"setting {error.args[0]!r} is missing"
        case OSError():
            what = f"{error.filename}: " if error.filename else ""
            return f"{what}{error.strerror or error.args[0] if error.args else type(error).__name__}"
        case _:
            return f"cannot be read ({type(error).__name__})"
