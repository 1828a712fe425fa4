import pytest

from federator.api.address import is_local, split_address
from federator.errors import InvalidInput


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9090", ("127.0.0.1", 9090)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_split_address_takes_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address, field="listen") == expected


@pytest.mark.parametrize("address", ["", "9090", ":9090", "host:", "host:http", "host:65536", "host:-1", "host:٣"])
def test_split_address_names_the_field_that_is_wrong(address: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        split_address(address, field="listen")
    assert (caught.value.field, caught.value.given) == ("listen", address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "localhost:1", "unix:/run/f.sock"])
def test_what_only_this_machine_reaches_is_local(address: str) -> None:
    assert is_local(address, field="listen")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1", "localhost.example.com:1"])
def test_what_others_may_reach_is_not(address: str) -> None:
    assert not is_local(address, field="listen")


@pytest.mark.parametrize("address", ["", "127.0.0.1", "localhost:http", "unix:"])
def test_what_is_no_address_is_neither(address: str) -> None:
    with pytest.raises(InvalidInput, match="listen"):
        is_local(address, field="listen")


def test_a_socket_path_too_long_for_the_kernel_is_refused() -> None:
    with pytest.raises(InvalidInput, match="100 bytes"):
        is_local("unix:/" + "x" * 100, field="listen")
