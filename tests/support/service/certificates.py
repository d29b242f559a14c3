"""A test's own certificate and its key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """Two files in PEM format."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, *, by: Self | None = None, names: Sequence[str] = ()) -> Self:
        """Create both in `folder`: for `names` and signed by `by`, by default for 127.0.0.1 and self-signed."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name[:64])])
        issuer, signer = name, key
        if by is not None:
            issuer = x509.load_pem_x509_certificate(by.certificate.read_bytes()).subject
            loaded = load_pem_private_key(by.key.read_bytes(), None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            signer = loaded
        now, public = datetime.now(UTC), key.public_key()
        hosts: list[x509.GeneralName] = [x509.DNSName(one) for one in names]
        hosts = hosts or [x509.IPAddress(ip_address("127.0.0.1"))]
        made = (
            x509.CertificateBuilder(issuer, name, public, x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .sign(signer, hashes.SHA256())
        )
        files = cls(folder / "certificate.pem", folder / "key.pem")
        files.certificate.write_bytes(made.public_bytes(Encoding.PEM))
        files.key.touch(0o600)
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files
