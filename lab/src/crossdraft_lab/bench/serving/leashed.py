"""`crossdraft` in a process that ends with its parent, so that a killed parent leaves no server behind.

Its standard input is a pipe whose other end the parent holds; the system closes the pipe when the parent is gone.
With `--program PROGRAM ARGUMENT…` another program is started, its process id printed, and it is killed then.
"""

import os
import runpy
import signal
import subprocess
import sys
import threading

PIPE = 0  # standard input


def _end_with_parent() -> None:
    while os.read(PIPE, 1):  # `sys.stdin` has a lock that the interpreter needs when it ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # the usual way to end `serve`


def _run_program(command: list[str]) -> None:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    sys.stdout.write(f"{process.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=lambda: os._exit(process.wait()), name="end", daemon=True).start()
    while os.read(PIPE, 1):
        pass
    process.kill()  # it may be stopped, when no other signal ends it
    process.wait()


if __name__ == "__main__" and sys.argv[1:2] == ["--program"]:
    _run_program(sys.argv[2:])
elif __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="leash", daemon=True).start()
    runpy.run_module("crossdraft", run_name="__main__", alter_sys=True)
