"""Ask PAM whether a name and a password go together, in a process that does nothing else.

It is run by itself, and knows nothing of lowtide: what PAM loads may crash it, or hang. It reads a
JSON document from its input, and prints the name under which PAM knows the user.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_size_t, c_void_p
from typing import Any, NoReturn

REFUSED, BROKEN = 1, 3
# PAM's own numbers.
_SUCCESS, _BUFFER = 0, 5
_HIDDEN, _SHOWN = 1, 2
_USER_ITEM, _DELAY_ITEM = 2, 10
_SILENT, _NO_EMPTY = 0x8000, 0x1


class _Message(Structure):
    _fields_ = (("style", c_int), ("text", c_char_p))


class _Reply(Structure):
    _fields_ = (("text", c_void_p), ("code", c_int))


_TALK = CFUNCTYPE(c_int, c_int, POINTER(POINTER(_Message)), POINTER(POINTER(_Reply)), c_void_p)
_DELAY = CFUNCTYPE(None, c_int, ctypes.c_uint, c_void_p)


class _Conversation(Structure):
    _fields_ = (("talk", _TALK), ("data", c_void_p))


def check(service: str, folder: str, user: str, password: str) -> tuple[int, str]:
    """Return PAM's own number for what it found, and the user's name.

    Args:
        folder: Where services are described; empty for the usual place.
    """
    library, system = ctypes.CDLL("libpam.so.0"), ctypes.CDLL(None)
    system.calloc.restype = system.strdup.restype = c_void_p
    system.calloc.argtypes = (c_size_t, c_size_t)
    system.strdup.argtypes = (c_char_p,)

    def talk(count: int, asked: Any, answers: Any, _data: Any) -> int:
        # PAM lets go of what it is answered with.
        replies = system.calloc(count, ctypes.sizeof(_Reply))
        if not replies:
            return _BUFFER
        table = ctypes.cast(replies, POINTER(_Reply))
        for place in range(count):
            style = asked[place].contents.style
            if style in (_HIDDEN, _SHOWN):
                said = password if style == _HIDDEN else user
                table[place].text = system.strdup(said.encode())
        answers[0] = table
        return _SUCCESS

    # Both have to outlive what PAM does with them.
    conversation = _Conversation(_TALK(talk), None)
    at_once = _DELAY(lambda *_: None)
    handle = c_void_p()
    named = (service.encode(), user.encode(), ctypes.byref(conversation))
    if folder:
        begun = library.pam_start_confdir(*named, folder.encode(), ctypes.byref(handle))
    else:
        begun = library.pam_start(*named, ctypes.byref(handle))
    if begun != _SUCCESS:
        sys.exit(BROKEN)
    # Whoever guesses is slowed down by the centre, which does not have to sit and wait for it.
    library.pam_set_item(handle, _DELAY_ITEM, at_once)
    found = library.pam_authenticate(handle, _SILENT | _NO_EMPTY)
    if found == _SUCCESS:
        found = library.pam_acct_mgmt(handle, _SILENT | _NO_EMPTY)
    name = c_void_p()
    if found == _SUCCESS:
        found = library.pam_get_item(handle, _USER_ITEM, ctypes.byref(name))
    text = ctypes.cast(name, c_char_p).value or b""
    library.pam_end(handle, found)
    return found, text.decode("utf-8", "replace")


def main() -> NoReturn:
    """Answer what is asked on the input."""
    asked = json.load(sys.stdin)
    found, name = check(**asked)
    if found == _SUCCESS:
        sys.stdout.write(f"{name}\n")
        sys.exit(0)
    # Modules tell faults of their own and wrong passwords apart in no way to rely on, and by which
    # of both it is one could tell which users there are: that is for the log.
    sys.stderr.write(f"{found}\n")
    sys.exit(REFUSED)


if __name__ == "__main__":
    main()
