"""Credentials for a server that wants none."""

from __future__ import annotations

from kubernetes.aio.client import ApiClient, Configuration

from federator.kube import credentials


class NoCredentials:
    """A source without a kubeconfig, which is read in threads: that takes longer than most tests.

    Not where `federator.kube` is watched for blocking calls: this one makes some.
    """

    name = "member"

    def __init__(self, url: str) -> None:
        self._url = url

    async def connect(self) -> ApiClient:
        return credentials._api_client(Configuration(host=self._url))
