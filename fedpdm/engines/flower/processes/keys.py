"""Certificates and keys for a federation: a certificate authority, the SuperLink's certificate, a key per node."""

import datetime
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Certificates", "make_certificates", "make_node_key"]

DAYS = 365


class Certificates(NamedTuple):
    """Files for `flower-superlink --ssl-*`; nodes get `authority` as their --root-certificates."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> Certificates:
    """Make a new certificate authority, and a certificate for the SuperLink.

    Parameters
    ----------
    folder : Path
        The folder of the files.
    hosts : tuple of str
        Host names and addresses of the SuperLink.

    Returns
    -------
    Certificates
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority_name = _name("fedpdm federation")
    authority = (
        _certificate(authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    server = (
        _certificate(_name(hosts[0]), authority_name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server_key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    result = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    result.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    result.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    _write_private(result.key, server_key, serialization.PrivateFormat.PKCS8)
    return result


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make the key pair of a node.

    Parameters
    ----------
    folder : Path
        The folder of the files.
    name : str
        The name of the node.

    Returns
    -------
    Path, Path
        The private key (for `--auth-supernode-private-key`) and the public key (for `flwr supernode register`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    _write_private(private, key, serialization.PrivateFormat.OpenSSH)
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    return private, public


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **dict.fromkeys(others, False))


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Write a key that only its owner can read, from the first byte on."""
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
