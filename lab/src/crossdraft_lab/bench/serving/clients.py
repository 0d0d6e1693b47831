"""Clients of a server, in a process of their own, so that their work is not done in the server's interpreter.

python -m crossdraft_lab.bench.serving.clients PORT COUNT

Reads a JSON list of turns, each a list of bodies, from standard input. For every further line it asks the next turn's
and writes a line: the number of tokens in the answers, and the seconds that they took.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from crossdraft_lab.bench.serving.plan import CHAT
from crossdraft_lab.bench.serving.process import PerThread


def main(port: int, count: int) -> None:
    """Read requests from standard input until it ends, as the module's docstring describes."""
    turns = json.loads(sys.stdin.readline())
    connections = PerThread(port)

    def ask(body: str) -> int:
        reply = connections.get().request("POST", CHAT, body.encode())
        return reply.json["usage"]["completion_tokens"]

    with ThreadPoolExecutor(count) as pool:
        for bodies, _ in zip(turns, sys.stdin, strict=False):
            start = time.perf_counter()
            tokens = sum(pool.map(ask, bodies))
            sys.stdout.write(f"{json.dumps([tokens, time.perf_counter() - start])}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
