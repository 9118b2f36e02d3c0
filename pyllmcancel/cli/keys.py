"""The keys of clients and of administrators, and the certificate, which the arguments of ``serve`` name."""

from __future__ import annotations

import argparse
import re
import ssl
from collections.abc import Set
from functools import partial

from pyllmcancel.errors import UsageError
from pyllmcancel.server.config import ADMIN, ApiKey, Certificate
from pyllmcancel.server.running.key_rotation import Hangups

OWNER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def hangups_of(arguments: argparse.Namespace) -> Hangups | None:
    return None if arguments.api_key_file is None else Hangups(partial(all_keys, arguments))


def all_keys(arguments: argparse.Namespace) -> tuple[tuple[ApiKey, ...], tuple[str, ...]]:
    """Return the keys of clients and of administrators, as the options and the file have them now."""
    owners = api_keys(arguments)
    return owners, admin_api_keys(arguments, {key for _, key in owners})


def api_keys(arguments: argparse.Namespace) -> tuple[ApiKey, ...]:
    found = [ApiKey.unnamed(key) for key in given_keys(arguments.api_key, "--api-key")]
    if arguments.api_key_file is not None:
        try:
            text = arguments.api_key_file.read_text("utf-8-sig")  # a mark before the text would become part of a key
        except UnicodeDecodeError as error:
            raise UsageError(f"--api-key-file {arguments.api_key_file} is not UTF-8: {error}") from None
        lines = map(str.strip, text.splitlines())
        in_file = [owned_key(line) for line in lines if line and not line.startswith("#")]
        if not in_file:
            # Whoever names a file of keys does not want an open server.
            raise UsageError(f"there is no key in --api-key-file {arguments.api_key_file}")
        found += in_file
    owners = dict[str, str]()
    for owner, key in found:
        if owners.setdefault(key, owner) != owner:
            raise UsageError(f"the owners {owners[key]} and {owner} have the same key")
    return tuple(found)


def given_keys(text: str | None, option: str) -> list[str]:
    """Return the keys of an option. An empty key is an error: ``--api-key "$UNSET"`` must not open the server."""
    keys = [] if text is None else [key.strip() for key in text.split(",")]
    if not all(keys):
        raise UsageError(f"{option} has an empty key")
    if any(key != key.encode(errors="ignore").decode() for key in keys):
        raise UsageError(f"{option} is not UTF-8")
    return keys


def owned_key(line: str) -> ApiKey:
    """Split ``KEY`` or ``NAME:KEY``."""
    name, separator, key = line.partition(":")
    if not separator:
        return ApiKey.unnamed(line)
    if not OWNER_NAME.fullmatch(name) or not key.strip():
        raise UsageError(f"a line of --api-key-file must be KEY or NAME:KEY, with a NAME like {OWNER_NAME.pattern}")
    if name == ADMIN:
        raise UsageError(f"{ADMIN} is the owner name of the keys of --admin-api-key: choose another name")
    return ApiKey(name, key.strip())


def admin_api_keys(arguments: argparse.Namespace, owners_keys: Set[str]) -> tuple[str, ...]:
    keys = given_keys(arguments.admin_api_key, "--admin-api-key")
    if keys and arguments.api_key is None and arguments.api_key_file is None:
        raise UsageError(
            "--admin-api-key needs --api-key or --api-key-file: without those the server is open to everybody"
        )
    if not owners_keys.isdisjoint(keys):
        raise UsageError("a key of --admin-api-key is also an owner's key: it must be one or the other")
    return tuple(keys)


def certificate_of(arguments: argparse.Namespace) -> Certificate | None:
    key, certificate = arguments.ssl_key_file, arguments.ssl_cert_file
    if key is None and certificate is None:
        return None
    if key is None or certificate is None:
        raise UsageError("--ssl-key-file and --ssl-cert-file must be given together")
    for path in (key, certificate):
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
    try:
        # A protected key would have OpenSSL ask the terminal for its password.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError:
        raise UsageError(f"{key} and {certificate} are not PEM files of a private key and its certificate") from None
    return Certificate(key, certificate)
