"""Member clusters: contexts and credentials, raw lists and watches, discovery.

`MemberClient` is the connection to one apiserver, `ResourceListWatch` lists and watches one type through it, and
`discover` tells which types there are. Credentials come through the official client; objects stay the bytes the server
wrote.
"""

from federator.kube.credentials import CredentialsSource, InClusterCredentials, KubeconfigCredentials
from federator.kube.discovery import Discovery, discover
from federator.kube.kubeconfig import ContextEntry, kubeconfig_contexts
from federator.kube.member_client import MemberClient
from federator.kube.resource_list_watch import ResourceListWatch

__all__ = [
    "ContextEntry",
    "CredentialsSource",
    "Discovery",
    "InClusterCredentials",
    "KubeconfigCredentials",
    "MemberClient",
    "ResourceListWatch",
    "discover",
    "kubeconfig_contexts",
]
