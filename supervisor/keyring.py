"""A broker token that must outlive its controller for a minute, kept in the kernel's memory and in no file.

Only hosts with `orphan_s` need this. The kernel's keyring of the user holds one entry per host; it forgets the entry by
itself when nobody has renewed it for its lifetime. Where there is no keyring (other kernels, strict containers) tokens
die with their controller, and so does the chance to resume.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final, Protocol

from pydantic import SecretStr

# System call numbers of add_key and keyctl: arch/x86/entry/syscalls/syscall_64.tbl and asm-generic/unistd.h.
_CALLS: Final = {"x86_64": (248, 250), "aarch64": (217, 219)}
# include/uapi/linux/keyctl.h
_USER_KEYRING: Final = -4
_SETPERM: Final = 5
_UNLINK: Final = 9
_SEARCH: Final = 10
_READ: Final = 11
_SET_TIMEOUT: Final = 15
# All rights for whoever possesses the key and for processes of the same user; none for group and others. A cron job
# does not possess what a login stored, so the second half is what lets it resume.
_POSSESSOR_AND_USER: Final = 0x3F3F0000
_TOKEN_BYTES_MAX: Final = 4096


class TokenStore(Protocol):
    """Where a token waits for a controller that may have to go on after a crash."""

    def keep(self, host_id: str, token: SecretStr, *, lifetime_s: float) -> bool:
        """Store or renew; false when this store cannot hold it."""
        ...

    def recall(self, host_id: str) -> SecretStr | None:
        """The token of that host, or null when it is not (or no more) known."""
        ...

    def forget(self, host_id: str) -> None:
        """Drop it; an unknown one is not an error."""
        ...


class KernelKeyring:
    """The user keyring of this kernel."""

    def __init__(self) -> None:
        numbers = _CALLS.get(platform.machine()) if os.name == "posix" else None
        self._numbers = numbers
        self._libc = ctypes.CDLL(None, use_errno=True)

    def keep(self, host_id: str, token: SecretStr, *, lifetime_s: float) -> bool:
        """Store or renew the entry, for `lifetime_s` seconds from now."""
        if self._numbers is None:
            return False
        secret = token.get_secret_value().encode()
        key = self._libc.syscall(
            ctypes.c_long(self._numbers[0]),
            b"user",
            _name(host_id),
            secret,
            ctypes.c_size_t(len(secret)),
            ctypes.c_int(_USER_KEYRING),
        )
        if key < 0:
            return False
        self._keyctl(_SETPERM, key, _POSSESSOR_AND_USER)
        return self._keyctl(_SET_TIMEOUT, key, max(1, int(lifetime_s))) == 0

    def recall(self, host_id: str) -> SecretStr | None:
        """What `keep` stored, unless its lifetime is over."""
        key = self._find(host_id)
        if key is None:
            return None
        buffer = ctypes.create_string_buffer(_TOKEN_BYTES_MAX)
        length = self._keyctl(_READ, key, ctypes.addressof(buffer), _TOKEN_BYTES_MAX)
        if not 0 < length <= _TOKEN_BYTES_MAX:
            return None
        return SecretStr(buffer.raw[:length].decode())

    def forget(self, host_id: str) -> None:
        """Take the entry out of the keyring; the kernel then frees it."""
        key = self._find(host_id)
        if key is not None:
            self._keyctl(_UNLINK, key, _USER_KEYRING)

    def _find(self, host_id: str) -> int | None:
        if self._numbers is None:
            return None
        kind, name = ctypes.create_string_buffer(b"user"), ctypes.create_string_buffer(_name(host_id))
        key = self._keyctl(_SEARCH, _USER_KEYRING, ctypes.addressof(kind), ctypes.addressof(name), 0)
        return key if key > 0 else None

    def _keyctl(self, *arguments: int) -> int:
        assert self._numbers is not None
        longs = [ctypes.c_long(value) for value in arguments]
        return int(self._libc.syscall(ctypes.c_long(self._numbers[1]), *longs))


def _name(host_id: str) -> bytes:
    return f"autocad-bench:{host_id}".encode()
