"""The keys of a lock. Uncompiled, the check of the name took a tenth of an acquire and release cycle.

A kind of lock that keeps more on a master than one token has derived keys. All keys of a lock are in one slot of a
cluster: the slot is computed from the hash tag, the text between the first `{` and the next `}`, or from the whole key
if there is none. So a derived key has the name as its hash tag, or begins with a name that has a tag:

    stock:7             {stock:7}\\0queue
    stock{7}            stock{7}\\0\\0queue

Names contain no NUL, so no derived key is the key of another name. The second NUL keeps the keys of "{a}" apart from
those of "a".
"""

from __future__ import annotations

from binascii import crc_hqx

from redlatch.errors import ConfigurationError

MAX_BYTES = 512

# The slots of a cluster.
SLOTS = 1 << 14

# By how much a derived key is longer than the name, at most, in bytes.
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


def _tag_in(key: bytes) -> bytes:
    opening = key.find(b"{")
    return key[opening + 1 : max(0, key.find(b"}", opening + 1))] if opening >= 0 else b""


def _has_tag(key: bytes) -> bool:
    return len(_tag_in(key)) > 0


def slot_of(key: bytes) -> int:
    """Return the slot of a cluster that a key is in: the last bits of the CRC16 of its hash tag."""
    return crc_hqx(_tag_in(key) or key, 0) & 0x3FFF


def may_have_others(key: bytes) -> bool:
    """Return whether a lock with this key can have derived keys."""
    return b"}" not in key or _has_tag(key)


def may_be_tag(text: bytes) -> bool:
    return b"{" not in text and b"}" not in text


def stem_of(key: bytes) -> bytes:
    """Return what the derived keys of the lock with this own key begin with."""
    # `in` takes the bytes for a number first, and the error that it drops costs 2,000 instructions.
    if key.find(b"}") < 0:
        return b"{" + key + b"}"
    if _has_tag(key):
        return key + b"\0"
    raise ConfigurationError(
        "name: only a plain lock may have a name with '}' outside a hash tag, because the keys of other locks must "
        "be in one slot of a cluster; leave the '}' out",
        name=key.decode(errors="backslashreplace"),
    )


def derived_key(key: bytes, suffix: bytes) -> bytes:
    """Return a key of the lock with this own key; `suffix` begins with a NUL, or is empty for the own key itself."""
    return stem_of(key) + suffix if suffix else key


def name_of(key: bytes) -> tuple[bytes, bytes]:
    """Return the own key of the lock that has this key, and the suffix, which is empty for the own key itself."""
    name, nul, suffix = key.partition(b"\0")
    if not nul or suffix[:1] == nul:
        return name, suffix
    return (name[1:-1], nul + suffix) if name[:1] == b"{" and name[-1:] == b"}" else (key, b"")


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
