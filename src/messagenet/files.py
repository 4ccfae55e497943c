"""Files that are either complete or absent: a reader never meets half of one, a crash never leaves one."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from messagenet.errors import InputError


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Writes beside the target under another name, then renames; missing folders are made."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {target} ({error.strerror}); choose a file in a writable folder"
        ) from None
    return target
