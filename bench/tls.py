"""A certificate for the masters of one race: self-signed, for 127.0.0.1, valid for a day."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from urllib.parse import quote

from bench.contender import Absent

# The key usages of a certificate that is both an authority and a server.
USAGE = {"digital_signature": True, "key_cert_sign": True, "crl_sign": True} | dict.fromkeys(
    ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
    False,
)


def certify(folder: Path) -> dict[str, str]:
    """Write a certificate and its key into a folder.

    Args:
        folder: a private folder, because the key is not encrypted.

    Returns:
        The directives of a server that uses them and accepts clients without certificates.

    Raises:
        Absent: the package cryptography is not installed.
    """
    certificate_file, key_file = folder / "master.crt", folder / "master.key"
    try:
        certificate_file.write_bytes(make(key_file))
    except ImportError as error:
        raise Absent("not installed (pip install cryptography)") from error
    return {
        "port": "0",
        "tls-port": "{port}",
        "tls-cert-file": str(certificate_file),
        "tls-key-file": str(key_file),
        "tls-ca-cert-file": str(certificate_file),
        "tls-auth-clients": "no",
    }


def make(key_file: Path) -> bytes:
    """Write a new key to the file, and return its certificate as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    key_file.touch(0o600)
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "redlatch bench")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**USAGE), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(host, critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(encoding)


def trusting(url: str, directives: dict[str, str]) -> str:
    """Return the URL for clients that trust this certificate and no other."""
    return f"{url}?ssl_ca_certs={quote(directives['tls-ca-cert-file'], safe='/')}"
