"""The key of a lock. Uncompiled, the check of the name took a tenth of an acquire and release cycle."""

from __future__ import annotations

from redlatch.errors import ConfigurationError

MAX_BYTES = 512

# The longest suffix that the family appends to a key, in bytes.
MAX_SUFFIX = 64


def key_of(prefix: bytes, name: object) -> bytes:
    if isinstance(name, str):
        try:
            raw = str.encode(name)
        except UnicodeEncodeError:
            raise ConfigurationError("name: cannot be encoded as UTF-8", name=name) from None
    elif isinstance(name, bytes):
        raw = bytes(name)
    else:
        raise TypeError(f"name: str or bytes is needed, not {type(name).__name__}")
    key = prefix + raw if prefix else raw
    if not raw or len(key) > MAX_BYTES or 0 in key:
        what = "it is empty" if not raw else "it contains a NUL" if 0 in key else f"{len(key)} bytes with the prefix"
        raise ConfigurationError(f"name: must have 1 to {MAX_BYTES} bytes and no NUL; {what}", name=name)
    return key


def key_as_it_is(key: bytes, what: str = "name") -> None:
    """Check the length of a key or token that another client may have written; `what` names it in the error."""
    if len(key) > MAX_BYTES:
        raise ConfigurationError(f"{what}: must have at most {MAX_BYTES} bytes, not {len(key)}")


def prefix_of(prefix: object) -> bytes:
    if not isinstance(prefix, (str, bytes)):
        raise TypeError(f"prefix: str or bytes is needed, not {type(prefix).__name__}")
    try:
        raw = prefix.encode() if isinstance(prefix, str) else bytes(prefix)
    except UnicodeEncodeError:
        raise ConfigurationError("prefix: cannot be encoded as UTF-8") from None
    if len(raw) >= MAX_BYTES or b"\0" in raw:
        raise ConfigurationError(f"prefix: must have less than {MAX_BYTES} bytes and no NUL")
    return raw
