"""A throw-away certificate authority, and certificates for servers and clients on this machine."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

START = datetime.datetime(1999, 1, 1)
END = datetime.datetime(2999, 1, 1)


def write(directory, end=END):
    """Writes ca.pem and, each with its key, server.pem and client.pem, which are valid until the end."""
    authority, authority_key = certificate("authority of a test", None, None)
    (directory / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for name in ("server", "client"):
        signed, key = certificate(f"{name} of a test", authority, authority_key, end)
        (directory / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        (directory / f"{name}.key").write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


def certificate(name, issuer, issuer_key, end=END):
    """A certificate and its key; signed by itself without an issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(START)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key or key, hashes.SHA256()), key
