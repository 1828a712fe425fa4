from __future__ import annotations

from federator.v1 import inventory_pb2, types_pb2
from tests.component.cli.conftest import Federator
from tests.component.client.scripted_inventory import ScriptedInventory


def answer() -> inventory_pb2.ListResourceTypesResponse:
    pods = types_pb2.ResourceType(
        version="v1", resource="pods", kind="Pod", namespaced=True, short_names=["po"], categories=["all"]
    )
    gadgets = types_pb2.ResourceType(group="example.com", version="v1", resource="gadgets", kind="Gadget")
    return inventory_pb2.ListResourceTypesResponse(
        types=[
            inventory_pb2.ServedType(type=pods, clusters=["eu-1", "us-2"]),
            inventory_pb2.ServedType(type=gadgets, clusters=["us-2"]),
        ]
    )


async def test_the_table_says_how_many_clusters_serve_a_type(
    federator: Federator, inventory: ScriptedInventory
) -> None:
    inventory.resource_types = answer()
    assert (await federator("api-resources")).out == (
        "NAME      SHORTNAMES   APIVERSION       NAMESPACED   KIND     CLUSTERS\n"
        "pods      po           v1               true         Pod      2/2\n"
        "gadgets   <none>       example.com/v1   false        Gadget   1/2\n"
    )
    wide = (await federator("api-resources", "-owide", "--no-headers")).out.splitlines()
    assert wide[0].split()[-2:] == ["all", "eu-1,us-2"]


async def test_names_are_what_get_takes(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.resource_types = answer()
    assert (await federator("api-resources", "-o", "name")).out == "pods\ngadgets.example.com\n"
