"""What the server logs: a line for each request, as text or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

NOTICES = ("crossdraft.serve", "crossdraft.engine.runner.supervisor")  # loggers whose notices are shown, too
NO_NEWS = frozenset(
    {"ASGI callable returned without completing handshake.", "Invalid UTF-8 sequence received from client."}
)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message, and the facts that the record carries."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info is not None:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Time, level, message, and the facts as `name=value`. Line breaks in them cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback of an error."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        facts = "".join(f" {name}={value}" for name, value in getattr(record, "facts", {}).items())
        line = f"{time} {record.levelname.lower()} {record.getMessage()}{facts}"
        line = line.encode("unicode_escape").decode()
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


def is_news(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn's is news.

    It takes a WebSocket that was refused with a response for a failure, and text that is no UTF-8, for which it ends
    the connection as it should, for one of its own, with a traceback.
    """
    return record.getMessage() not in NO_NEWS


def start_logging(style: str) -> None:
    """Log to stderr, our own records and warnings of others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(is_news)
    for name in NOTICES:
        logging.getLogger(name).setLevel(logging.INFO)
