"""Fills a cluster with objects, and keeps them moving."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn
from uuid import UUID

import structlog

from federator.errors import InvalidInput, KubeStatusError, MemberUnreachable
from federator.testing import manifests
from federator.testing.admin_client import AdminClient, Json
from federator.testing.control_plane import ControlPlane
from federator.testing.etcd_store import store_objects

log = structlog.get_logger(__name__)

NAMESPACES = ("billing", "catalog", "checkout", "search")
"""Namespaces of a workload; the same in every cluster, as teams have it."""

_APPS = ("cart", "orders", "payments", "prices", "reviews", "shipping", "stock", "users")

_NODES = 50
"""Nodes that bare pods are spread over where no controller looks whether they exist."""

_MAX_REPLICAS = 6

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.2, 5.0
"""Seconds between two tries while the apiserver is away."""

_ACCOUNT_POLL = 0.1

_REMEMBERED_DELETIONS = 16
"""Names of deleted applications that may come back; older ones are forgotten."""

_OPERATIONS = {"scale": 40, "roll": 20, "relabel": 15, "configure": 15, "create": 5, "delete": 5}
"""How often each operation is drawn, in percent."""

Application = tuple[str, str]
"""Namespace and name of an application's Deployment, ConfigMap and Service."""


class Workload:
    """The applications of one cluster: Deployments, each with a ConfigMap and a Service, in a few namespaces.

    The seed decides everything: the same seed and the same calls make the same objects and draw the same operations.
    """

    def __init__(self, control_plane: ControlPlane, *, namespaces: Sequence[str] = NAMESPACES, seed: int = 0) -> None:
        self._control_plane = control_plane
        self._namespaces = tuple(namespaces)
        # With the name: clusters of one seed hold the same applications, but do not move in step.
        self._random = random.Random(f"{control_plane.name} {seed}")
        self._applications: list[Application] = []
        self._deleted: deque[Application] = deque(maxlen=_REMEMBERED_DELETIONS)
        self._filled = 0
        self._number = 0
        self._done: Counter[str] = Counter()

    async def fill(self, *, applications: int = 12, pods: int = 0, concurrency: int = 64) -> int:
        """Creates objects as fast as the apiserver takes them. What exists already is left as it is.

        Args:
            applications: number of applications to add.
            pods: number of bare, Running pods. They are put straight into etcd, because creating ten thousand of them
                would take a minute or two; those of an earlier call are overwritten.
            concurrency: requests in flight.

        Returns:
            How many objects were created. When cancelled, what was created stays.

        Raises:
            KubeStatusError, MemberUnreachable: from a request that failed; the others are cancelled.
        """
        added = [self._next_application() for _ in range(applications)]
        async with self._control_plane.client(connections=concurrency) as client:
            spaces = (("/api/v1/namespaces", manifests.namespace(name)) for name in self._namespaces)
            created = await _create_all(client, spaces, concurrency)
            if self._control_plane.living:
                await self._wait_for_accounts(client)
            objects = (obj for application in added for obj in self._objects(application))
            created += await _create_all(client, objects, concurrency)
        self._applications += added
        self._filled += len(added)
        if not pods:
            return created
        return created + await store_objects(self._control_plane.etcd_socket, self._pods(pods))

    async def churn(self, *, rate: float) -> NoReturn:
        """Scales, rolls, relabels, reconfigures, creates and deletes applications until it is cancelled.

        The number of applications stays near what `fill` made. While the apiserver is away it keeps trying, less and
        less often; operations that came due in the meantime are not made up for. When cancelled, the last operation
        may have been done or not, or (creating and deleting) in part.

        Args:
            rate: operations per second.

        Raises:
            InvalidInput: nothing was filled, or the rate is not positive.
            KubeStatusError: the apiserver refused an operation for another reason than that the object is gone, is
                there already, or changed meanwhile.
        """
        if rate <= 0:
            raise InvalidInput("rate", rate, "operations per second, above 0")
        if not self._applications:
            raise InvalidInput("applications", 0, "a workload that was filled")
        loop = asyncio.get_running_loop()
        due = loop.time()
        backoff = _FIRST_BACKOFF
        async with self._control_plane.client() as client:
            while True:
                await asyncio.sleep(due - loop.time())
                due = max(due + 1 / rate, loop.time())
                if await self._try_one(client):
                    backoff = _FIRST_BACKOFF
                else:
                    log.debug("apiserver is away", cluster=self._control_plane.name, retry_after=backoff)
                    await asyncio.sleep(backoff)
                    backoff = min(2 * backoff, _LONGEST_BACKOFF)

    def statistics(self) -> Mapping[str, int]:
        """Operations by kind; of these `missed` found the object gone or changed, and `unreachable` no apiserver."""
        return dict(self._done)

    async def _try_one(self, client: AdminClient) -> bool:
        """Returns False if the apiserver is away."""
        try:
            await self._operate(client)
        except MemberUnreachable:
            self._done["unreachable"] += 1
            return False
        except KubeStatusError as error:
            if error.code == 429 or error.code >= 500:
                self._done["unreachable"] += 1
                return False
            if error.code not in {404, 409}:
                raise
            self._done["missed"] += 1
        return True

    async def _operate(self, client: AdminClient) -> None:
        (operation,) = self._random.choices(list(_OPERATIONS), list(_OPERATIONS.values()))
        if operation == "delete" and len(self._applications) <= max(1, self._filled // 2):
            operation = "create"
        elif operation == "create" and len(self._applications) >= 2 * self._filled:
            operation = "delete"
        self._done[operation] += 1
        match operation:
            case "create":
                await self._create(client)
            case "delete":
                await self._delete(client)
            case "configure":
                namespace, name = self._random.choice(self._applications)
                content = manifests.config_map(namespace, name, revision=self._random.randrange(1000))
                await client.patch(f"/api/v1/namespaces/{namespace}/configmaps/{name}", {"data": content["data"]})
            case _:
                namespace, name = self._random.choice(self._applications)
                path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
                await client.patch(path, self._deployment_change(operation, name))

    def _deployment_change(self, operation: str, name: str) -> Json:
        match operation:
            case "scale":
                return {"spec": {"replicas": self._random.randint(0, _MAX_REPLICAS)}}
            case "roll":
                version = f"1.{self._random.randrange(20)}.{self._random.randrange(20)}"
                container = manifests.container(name, version)
                labels = manifests.labels(name, version=version)
                template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
                return {"metadata": {"labels": labels}, "spec": {"template": template}}
            case _:
                return {"metadata": {"labels": {"track": self._random.choice(["stable", "canary", "beta"])}}}

    async def _create(self, client: AdminClient) -> None:
        # Half of the time a name that was there before: the same key then has another UID.
        again = self._deleted and self._random.random() < 0.5
        application = self._deleted.pop() if again else self._next_application()
        self._applications.append(application)
        for collection, obj in self._objects(application):
            await client.create(collection, obj)

    async def _delete(self, client: AdminClient) -> None:
        application = self._applications.pop(self._random.randrange(len(self._applications)))
        self._deleted.append(application)
        namespace, name = application
        await client.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
        await client.delete(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        await client.delete(f"/api/v1/namespaces/{namespace}/services/{name}")

    def _next_application(self) -> Application:
        number, self._number = self._number, self._number + 1
        return self._namespaces[number % len(self._namespaces)], f"{_APPS[number % len(_APPS)]}-{number}"

    def _objects(self, application: Application) -> Iterator[tuple[str, Json]]:
        """The collection and the content of each object of an application."""
        namespace, name = application
        replicas = self._random.randint(1, _MAX_REPLICAS)
        core = f"/api/v1/namespaces/{namespace}"
        yield (
            f"/apis/apps/v1/namespaces/{namespace}/deployments",
            manifests.deployment(namespace, name, replicas=replicas),
        )
        yield f"{core}/configmaps", manifests.config_map(namespace, name, revision=0)
        yield f"{core}/services", manifests.service(namespace, name)

    def _pods(self, count: int) -> Iterator[tuple[str, Json]]:
        """The path in etcd and the content of each bare pod."""
        # Controllers delete pods of nodes that do not exist.
        nodes = self._control_plane.nodes if self._control_plane.living else _NODES
        for number in range(count):
            namespace = self._namespaces[number % len(self._namespaces)]
            app = _APPS[number % len(_APPS)]
            name = f"{app}-{number:06}"
            pod = manifests.stored_pod(
                namespace,
                name,
                app=app,
                node=f"node-{number % nodes}",
                uid=str(UUID(int=self._random.getrandbits(128))),
            )
            yield f"pods/{namespace}/{name}", pod

    async def _wait_for_accounts(self, client: AdminClient) -> None:
        """No pod is let into a namespace before the controllers have given it its default service account."""
        for namespace in self._namespaces:
            while True:
                try:
                    await client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
                except KubeStatusError as error:
                    if error.code != 404:
                        raise
                    await asyncio.sleep(_ACCOUNT_POLL)
                else:
                    break


async def _create_all(client: AdminClient, objects: Iterable[tuple[str, Json]], concurrency: int) -> int:
    """Creates objects with a fixed number of requests in flight; returns how many did not exist."""
    remaining = iter(objects)
    created = 0

    async def create_rest() -> None:
        nonlocal created
        for collection, obj in remaining:  # the workers share the iterator, each object goes to one of them
            try:
                await client.create(collection, obj)
            except KubeStatusError as error:
                if error.status_reason != "AlreadyExists":
                    raise
            else:
                created += 1

    try:
        async with asyncio.TaskGroup() as workers:
            for number in range(concurrency):
                workers.create_task(create_rest(), name=f"create objects {number}")
    except* (KubeStatusError, MemberUnreachable) as failures:
        raise failures.exceptions[0] from None
    return created
