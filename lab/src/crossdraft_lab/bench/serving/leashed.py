"""`crossdraft` in a process that ends with its parent, so that a killed parent leaves no server behind.

Its standard input is a pipe whose other end the parent holds; the system closes the pipe when the parent is gone.
"""

import os
import runpy
import signal
import threading

PIPE = 0  # standard input


def _end_with_parent() -> None:
    while os.read(PIPE, 1):  # `sys.stdin` has a lock that the interpreter needs when it ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # the usual way to end `serve`


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="leash", daemon=True).start()
    runpy.run_module("crossdraft", run_name="__main__", alter_sys=True)
