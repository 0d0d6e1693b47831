"""`crossdraft` in a process that ends with its parent, so that a killed parent leaves no server behind.

Its standard input is a pipe whose other end the parent holds, and the system closes that when the parent is gone.
"""

import os
import runpy
import signal
import threading

PIPE = 0  # standard input


def _end_with_parent() -> None:
    while os.read(PIPE, 1):  # not by `sys.stdin`, whose lock the interpreter needs when it ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # as `serve` is told to end


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="leash", daemon=True).start()
    runpy.run_module("crossdraft", run_name="__main__", alter_sys=True)
