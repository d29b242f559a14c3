"""Permitted targets of webhooks: a name is resolved once, checked, and the result is connected to."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from service.errors import ConfigurationError
from service.webhooks.endpoints import checked_url
from service.webhooks.posting import AddressRefused, Poster, addresses_of, is_public
from tests.support.service.receivers import receiver
from tests.support.service.webhook_world import LOOPBACK

PUBLIC = [
    "8.8.8.8",
    "3.255.0.1",
    "2001:4860:4860::8888",
    "151.101.1.69",
    "2606:4700::6810:84e5",
    "64:ff9b::808:808",
    "2002:808:808::1",
]
PRIVATE = [
    *("10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "0.0.0.0", "169.254.169.254", "100.64.0.1"),
    *("192.0.0.9", "192.0.0.10", "192.88.99.1", "192.31.196.1", "192.52.193.1", "192.175.48.1"),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "203.0.113.7"),
    *("::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "100::1"),
    *("3fff::1", "3fff:fff:ffff::1", "2001:1::1", "2001:4:112::1", "2001:20::1", "2620:4f:8000::1", "5f00::1"),
    # Spellings of a non-public IPv4 address.
    *("::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:a00:1::1", "2002:7f00:1::", "64:ff9b:1::a00:1"),
    "2001:0:4136:e378:8000:63bf:f5ff:fffe",
]


def leading_to(*answers: list[str]) -> tuple[Callable[..., Any], list[str]]:
    """Return a resolver that gives `answers` in order, the last one forever; and the names it was asked for."""
    asked: list[str] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        asked.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(0, 0, 0, "", (address, port)) for address in found]

    return getaddrinfo, asked


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_everybodys_is_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PRIVATE)
async def test_what_is_not_everybodys_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Also beside a public one: the name server must not choose which of the two is connected to.
    for found in ([text], ["8.8.8.8", text]):
        monkeypatch.setattr(socket, "getaddrinfo", leading_to(found)[0])
        with pytest.raises(AddressRefused, match="is not a public address"):
            await addresses_of("https://dsr.example/", ())


async def test_an_address_of_ipv4_written_as_one_of_ipv6_is_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", leading_to(["::ffff:10.1.2.3"])[0])
    with pytest.raises(AddressRefused):
        await addresses_of("https://dsr.example/", LOOPBACK)
    monkeypatch.setattr(socket, "getaddrinfo", leading_to(["::ffff:127.0.0.1"])[0])
    assert await addresses_of("http://dsr.example/", LOOPBACK) == ["127.0.0.1"]


async def test_without_tls_nothing_is_sent_to_where_everybody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", leading_to(["8.8.8.8"])[0])
    assert await addresses_of("https://dsr.example/", ()) == ["8.8.8.8"]
    with pytest.raises(AddressRefused, match="sent by https"):
        await addresses_of("http://dsr.example/", ())


@pytest.mark.parametrize(
    "url",
    [
        "ftp://dsr.example/",
        "dsr.example",
        "https://",
        "https:///hook",
        "file:///etc/passwd",
        "https://user:secret@dsr.example/",
        "https://dsr.example/#part",
        "https://dsr.example:0/",
        "https://dsr.example:99999/",
        "https://dsr.example:x/",
        "https://bücher.example/",
        "https://dsr.example/a b",
        "https://dsr.example/\r\nHost: 10.0.0.1",
        "https://[::1/",
        "https://dsr.example/" + "a" * 2000,
        f"https://{'a' * 64}.example/",
    ],
)
def test_what_is_no_receivers_address_is_refused_when_it_is_added(url: str) -> None:
    with pytest.raises(ConfigurationError):
        checked_url(url)


async def test_a_name_that_leads_elsewhere_a_moment_later_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the checked address is used, without another lookup."""
    async with receiver() as one:
        url = f"http://dsr.test:{one.port}/hook"
        look_up, asked = leading_to(["127.0.0.1"], ["127.0.0.2"])
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        addresses = await addresses_of(url, LOOPBACK)
        answer = await Poster().post(url, addresses, {"webhook-id": "1"}, b"{}")
        assert answer.is_delivered
        assert asked == ["dsr.test"]
        [received] = one.received
        assert received.headers["host"] == f"dsr.test:{one.port}"


async def test_a_certificate_is_that_of_the_name_and_of_a_known_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = certified("dsr.test", tmp_path)
    taken = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        unknown = await Poster().post(f"https://dsr.test:{port}/", ["127.0.0.1"], {}, b"")
        assert "CERTIFICATE_VERIFY_FAILED" in unknown.text
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        other = await Poster().post(f"https://other.test:{port}/", ["127.0.0.1"], {}, b"")
        assert "CERTIFICATE_VERIFY_FAILED" in other.text
        assert taken == []
        assert (await Poster().post(f"https://dsr.test:{port}/", ["127.0.0.1"], {}, b"")).is_delivered
        assert len(taken) == 1


def certified(name: str, folder: Path) -> ssl.SSLContext:
    """Return a server's context with a self-signed certificate, whose public part is `certificate.pem` in `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context
