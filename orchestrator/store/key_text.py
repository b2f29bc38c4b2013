"""etcd's keys are bytes, ours are text."""


def key_text(key: bytes) -> str:
    """The key as text; a byte that is none is shown by its number.

    No key of ours has one. But whoever may write below a prefix may name keys as he likes, an agent below its own, and
    that must not end those who read there.
    """
    return key.decode(errors="backslashreplace")
