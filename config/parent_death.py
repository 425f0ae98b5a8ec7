from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent dies, even by kill -9.

    Otherwise it would linger, hold the port and serve old code. Elsewhere than on Linux there is
    no such call, and only a kill -9 of the parent makes the difference.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), signal.SIGTERM)
