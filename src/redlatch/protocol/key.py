"""The key that a name becomes on the masters. Compiled as `redlatch._c.protocol.key`, too (see `redlatch._c`).

Every lock object begins with this; checked by the interpreter, names took a tenth of a cycle.
"""

from __future__ import annotations

from redlatch.errors import ConfigurationError

MAX_BYTES = 512

# What the lock family puts behind a name is not longer than that.
MAX_SUFFIX = 64


def key_of(prefix: bytes, name: object) -> bytes:
    """Return the key that stands for a lock's name on the masters.

    Raises:
        TypeError: the name is neither str nor bytes.
        ConfigurationError: it is empty, holds a NUL, or is longer than 512 bytes with its prefix.
    """
    if isinstance(name, str):
        try:
            raw = name.encode()
        except UnicodeEncodeError:
            raise ConfigurationError("name: it cannot be encoded as UTF-8", name=name) from None
    elif isinstance(name, bytes):
        raw = bytes(name)
    else:
        raise TypeError(f"name: str or bytes is needed, not {type(name).__name__}")
    key = prefix + raw
    if not raw or len(key) > MAX_BYTES or 0 in key:
        what = "it is empty" if not raw else "it holds a NUL" if 0 in key else f"{len(key)} bytes with the prefix"
        raise ConfigurationError(f"name: 1 to {MAX_BYTES} bytes without NUL are needed; {what}", name=name)
    return key


def key_as_it_is(key: bytes, what: str = "name") -> None:
    """Check a key, or a token, that another client may have written.

    Raises:
        ConfigurationError: it is longer than 512 bytes.
    """
    if len(key) > MAX_BYTES:
        raise ConfigurationError(f"{what}: at most {MAX_BYTES} bytes are possible, not {len(key)}")


def prefix_of(prefix: object) -> bytes:
    """Return the prefix of every key as bytes.

    Raises:
        TypeError: it is neither str nor bytes.
        ConfigurationError: it holds a NUL, or is so long that no name could follow.
    """
    if not isinstance(prefix, (str, bytes)):
        raise TypeError(f"prefix: str or bytes is needed, not {type(prefix).__name__}")
    try:
        raw = prefix.encode() if isinstance(prefix, str) else bytes(prefix)
    except UnicodeEncodeError:
        raise ConfigurationError("prefix: it cannot be encoded as UTF-8") from None
    if len(raw) >= MAX_BYTES or b"\0" in raw:
        raise ConfigurationError(f"prefix: less than {MAX_BYTES} bytes without NUL are needed")
    return raw
