"""Every setting of the server: one schema, read from a file, from the environment and from flags.

Flags override the environment (`CROSSDRAFT_PORT=…`), which overrides the file, which overrides the defaults. The
command line's options and the list in docs/server_settings.md are made from the same fields.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, Field, ValidationError, create_model, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from crossdraft.checks import did_you_mean, is_address, is_loopback
from crossdraft.errors import CrossdraftError
from crossdraft.options import GONE, OPTIONS, Options, flag_of, kinds

MIB = 1 << 20
FORM_BYTES = 1 << 16  # bytes of the form around an upload
PREFIX = "CROSSDRAFT_"  # prefix of a setting in the environment
OTHERS = frozenset({"CROSSDRAFT_KEY"})  # variables of clients, which may share the environment with a server
GROUPS = ("Network", "Models", "Engine", "Clients", "Media", "Records")
ORIGIN = re.compile(r"https?://[^/\s]+")
LABEL = r"[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?"
HOST = re.compile(rf"({LABEL}(?:\.{LABEL})*)(?::(\d{{1,5}}))?", re.IGNORECASE)
NUMBER = re.compile(r"(?:.*\.)?(?:\d+|0x[0-9a-f]*)", re.IGNORECASE)  # an IPv4 address, in whatever notation
Words = Annotated[tuple[str, ...], NoDecode]


def _setting(group: str, default: Any, description: str, **limits: Any) -> Any:
    return Field(default=default, description=description, json_schema_extra={"group": group}, **limits)


def _checker(name: str) -> Callable[[Any], Any]:
    """Adapt the engine's own check of an option for pydantic."""

    def checked(value: Any) -> Any:
        try:
            return OPTIONS[name].checked(name, value)
        except CrossdraftError as error:
            raise ValueError(str(error)) from None

    return checked


def _engine_settings() -> dict[str, Any]:
    """Make a setting for each option of the engine."""
    found: dict[str, Any] = {}
    for name, kind in kinds().items():
        option = OPTIONS[name]
        number = next((one for one in (int, float, bool) if one in (kind, *get_args(kind))), None)
        default = option.default if option.serving is None else option.serving
        read: Any = Any if number is None else number if default is not None else number | None  # text is read by us
        found[name] = (Annotated[read, AfterValidator(_checker(name))], _setting("Engine", default, option.sentence))
    return found


EngineSettings = create_model("EngineSettings", __base__=BaseSettings, **_engine_settings())


class ServerSettings(EngineSettings):
    """All settings of a server, including those of the engine."""

    # `${NAME:-}` in a compose file or a shell gives an unset variable the empty value.
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    host: str = _setting("Network", "127.0.0.1", "address to listen on")
    port: int = _setting("Network", 8000, "port; 0 = any free one, which the first line says", ge=0, le=65535)
    cors_origins: Words = _setting(
        "Network",
        (),
        "origins of web pages that may call this server, comma-separated; * = of all, with keys only; none by default",
    )
    allowed_hosts: Words = _setting(
        "Network",
        (),
        "names under which it may be asked, beside localhost and addresses, comma-separated; with keys any by default",
    )
    open_to_all: bool = _setting("Network", False, "listen beyond loopback without keys: whoever reaches it may ask")
    tls_cert: Path | None = _setting("Network", None, "certificate in PEM, with its chain; then the port speaks TLS")
    tls_key: Path | None = _setting("Network", None, "the certificate's key; by default in the same file")
    tls_client_ca: Path | None = _setting(
        "Network", None, "authorities in PEM: clients must have a certificate of theirs (mutual TLS)"
    )
    connections: int = _setting(
        "Network",
        256,
        "connections at a time, WebSockets excepted; 16 more get 503, but at /health and /ready; others are closed",
        ge=1,
    )
    header_seconds: float = _setting(
        "Network", 10, "seconds in which the head of a request must arrive; before it a TLS handshake", gt=0
    )
    body_seconds: float = _setting("Network", 60, "seconds in which the body of a request must arrive", gt=0)
    body_bytes: int = _setting("Network", 64 * MIB, "bytes of a request's body, uploads excepted", ge=1)
    bodies_bytes: int = _setting("Network", 512 * MIB, "bytes of the bodies of all requests at a time", ge=1)
    drain_seconds: float = _setting("Network", 30, "seconds that running answers get to end after SIGTERM", ge=0)

    target: str = _setting(
        "Models",
        "reference",
        "'reference', the folder of a Hugging Face checkpoint, or the id of one in the local cache",
    )
    drafter: str = _setting(
        "Models",
        "auto",
        "a drafter's spec; none; or auto: mtp, else union:memory,ngram; of the reference pair fallback:glance,eagle2",
    )
    served_name: str | None = _setting("Models", None, "name of the model for clients; by default the target's")
    alias: Words = _setting("Models", (), "further names of the model for clients, comma-separated")
    max_new_tokens: int = _setting("Models", 1024, "longest answer that a client may ask for", ge=1)
    request_seconds: float = _setting("Models", 300, "seconds after which an answer ends with what it has", gt=0)

    keys_file: Path | None = _setting(
        "Clients", None, "API keys, hashed (crossdraft serve new-key); without it everybody may ask"
    )
    requests_per_minute: int | None = _setting(
        "Clients", None, "requests of one key in a minute, where its own record does not say", ge=1
    )
    concurrent: int | None = _setting(
        "Clients", None, "requests of one key at a time, where its own record does not say", ge=1
    )

    edges: int = _setting("Clients", 64, "edges that are connected at a time; another is refused with 503", ge=0)
    client_edges: int = _setting("Clients", 16, "edges of one key at a time; another is refused with 429", ge=1)
    edge_idle_seconds: float = _setting(
        "Clients", 600, "seconds without a question after which an edge is hung up on; it may come again", gt=0
    )
    edge_frames: int = _setting("Clients", 1000, "frames of an edge in a second; one that sends more is cut off", ge=1)
    edge_bytes: int = _setting(
        "Clients", 2 * MIB, "bytes of an edge's frames in a second; one that sends more is cut off", ge=1
    )
    edge_resume_seconds: float = _setting(
        "Clients", 15, "seconds for which an answer waits for an edge whose connection was cut", ge=0
    )

    streams: int = _setting("Clients", 4, "streams of /v1/watch at a time; another is refused with 503", ge=0)
    stream_messages: int = _setting(
        "Clients", 500, "messages of a live stream in a second; one that sends more is cut off", ge=1
    )
    live_hosts: Words = _setting(
        "Clients",
        (),
        "host:port of live sources that a stream may name, comma-separated; they are decoded in the server's process",
    )

    media_root: Path | None = _setting("Media", None, "folder whose files requests may name as file:NAME")
    remote_hosts: Words = _setting(
        "Media",
        (),
        "hosts from which media may be fetched by http(s), comma-separated; host:port for another port than 80 and "
        "443; private addresses, and addresses written as one number, are refused; none by default",
    )
    remote_bytes: int = _setting("Media", 64 * MIB, "bytes of one fetched file", ge=1)
    remote_seconds: float = _setting("Media", 20, "seconds for one fetch, redirects included", gt=0)
    local_bytes: int = _setting("Media", 4096 * MIB, "bytes of one file of the media folder", ge=1)
    media_bytes: int = _setting(
        "Media",
        2048 * MIB,
        "bytes of media that all requests hold at a time: sent in them, fetched, decoded; beyond it 503",
        ge=1,
    )
    parts: int = _setting("Media", 16, "images, clips and recordings of one request", ge=1)
    media_cache_bytes: int = _setting(
        "Media", 256 * MIB, "bytes of decoded frames and events that are kept for later requests", ge=0
    )
    ocr: str | None = _setting(
        "Media", None, "an OCR engine, whose words of a request's images are hints: see --ocr of ask"
    )
    decode_workers: int = _setting("Media", 2, "processes that decode media", ge=1)
    decode_seconds: float = _setting("Media", 20, "seconds in which one image, clip or recording must be decoded", gt=0)
    decode_bytes: int = _setting("Media", 2048 * MIB, "bytes of address space of a process that decodes", ge=256 * MIB)
    upload_folder: Path | None = _setting("Media", None, "where uploads are kept; by default a temporary folder")
    upload_bytes: int = _setting("Media", 256 * MIB, "bytes of one upload", ge=1)
    upload_quota: int = _setting("Media", 1024 * MIB, "bytes of all uploads of one key", ge=1)
    upload_seconds: float = _setting("Media", 86_400, "seconds after which an upload is deleted", gt=0)

    log_format: Literal["text", "json"] = _setting("Records", "text", "form of what is logged on stderr: text or json")
    per_request_metrics: bool = _setting("Records", True, "put `metrics` into each answer, as vLLM does")
    trace_spans: bool = _setting("Records", False, "OpenTelemetry spans, exported as OTEL_* variables say")

    @field_validator("cors_origins", "allowed_hosts", "alias", "remote_hosts", "live_hosts", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value

    @field_validator("media_root", "keys_file", "upload_folder", "tls_cert", "tls_key", "tls_client_ca")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().resolve()

    @field_validator("allowed_hosts", "live_hosts")
    @classmethod
    def _lower(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.lower() for name in value)

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if one != "*" and not ORIGIN.fullmatch(one):
                raise ValueError(f"{one} is no origin; write it as https://example.org, without a path")
        return value

    @field_validator("remote_hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            _check_host(one)
        return value

    @model_validator(mode="after")
    def _guarded(self) -> "ServerSettings":
        if self.keys_file is None and "*" in self.cors_origins:
            raise ValueError(
                "With cors_origins * and no keys every web page could ask; name a --keys-file, or the pages' origins."
            )
        if self.tls_cert is None and (self.tls_key or self.tls_client_ca):
            raise ValueError("A key, or the clients' authority, is given without a certificate; name it by --tls-cert.")
        _ = self.engine  # whose options may exclude each other
        known = self.keys_file is not None or self.tls_client_ca is not None
        if not known and not is_loopback(self.host) and not self.open_to_all:
            raise ValueError(
                f"Without keys everybody who reaches {self.host or 'any address of this machine'} could ask; make a "
                "--keys-file (crossdraft serve new-key), name a --tls-client-ca, or say --open-to-all."
            )
        return self

    @cached_property
    def engine(self) -> Options:
        """The engine's options."""
        return Options(**{name: getattr(self, name) for name in OPTIONS})

    @property
    def largest_body(self) -> int:
        """Largest number of bytes of a request's body."""
        return max(self.body_bytes, self.upload_bytes + FORM_BYTES)

    @property
    def model(self) -> str:
        """The model's name for clients."""
        return self.served_name or Path(self.target).name


def _check_host(given: str) -> None:
    """Refuse a host that media can never be fetched from."""
    from crossdraft.serve.fetch import is_public

    found = HOST.fullmatch(given)
    host = given if found is None else found[1]
    if not is_address(host) and (found is None or int(found[2] or 80) > 0xFFFF):
        raise ValueError(f"{given} is no host; write media.example.org, or media.example.org:8443 for its port 8443")
    number = is_address(host) or NUMBER.fullmatch(host)
    if is_loopback(host) or (number and not is_public(host)):
        raise ValueError(f"{given} is no address of the internet, and from no other is fetched; name a host there")


def all_settings() -> dict[str, FieldInfo]:
    """All settings, group by group."""
    return dict(sorted(ServerSettings.model_fields.items(), key=lambda item: GROUPS.index(group_of(item[1]))))


def group_of(setting: FieldInfo) -> str:
    """Heading under which `--help` and the docs list a setting."""
    extra = setting.json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else ""


def read_settings(file: Path | None, flags: Mapping[str, Any]) -> ServerSettings:
    """Read the server's settings.

    Args:
        file: YAML file (JSON is YAML, too) with a mapping from names to values.
        flags: settings given on the command line.

    Raises:
        CrossdraftError: the file cannot be read, a setting is unknown, or a value is out of range.
    """
    in_file = {} if file is None else _in_file(file)

    class Layered(ServerSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, in_file)

    try:
        return Layered(**flags)
    except ValidationError as error:
        raise CrossdraftError(_sentence(error, file, flags)) from None
    except SettingsError as error:
        raise CrossdraftError(
            f"A variable of the environment, CROSSDRAFT_…, cannot be read: {error}; write its value as JSON."
        ) from None


def unknown_variables(environment: Mapping[str, str]) -> str | None:
    """Sentence about variables that look like settings but are none; `None` if there are no such variables.

    >>> unknown_variables({"CROSSDRAFT_MAX_QUEU": "1", "CROSSDRAFT_PORT": "1", "HOME": "/"})
    "No setting is called CROSSDRAFT_MAX_QUEU (did you mean 'CROSSDRAFT_MAX_QUEUE'?); `crossdraft serve --help` lists \
them."
    """
    known = {f"{PREFIX}{name.upper()}" for name in ServerSettings.model_fields}
    given = sorted(name for name in environment if name.upper().startswith(PREFIX))
    unknown = [name for name in given if name.upper() not in known | OTHERS]
    if not unknown:
        return None
    named = ", ".join(f"{name}{did_you_mean(name.upper(), known)}" for name in unknown)
    return f"No setting is called {named}; `crossdraft serve --help` lists them."


def _in_file(file: Path) -> dict[str, Any]:
    """Read the settings of a file, without checking them.

    Raises:
        CrossdraftError: the file cannot be read, or is no mapping.
    """
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CrossdraftError(f"There is no configuration file at {file}; check the path.") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise CrossdraftError(f"The configuration {file} cannot be read: {what}; mend the file.") from None
    if not isinstance(found, dict | None):
        raise CrossdraftError(f"The configuration {file} is no mapping of settings; write one a line, as max_queue: 8.")
    return {str(name): value for name, value in (found or {}).items()}


def _sentence(error: ValidationError, file: Path | None, flags: Mapping[str, Any]) -> str:
    """First error of a validation, in one sentence."""
    first = error.errors()[0]
    if not first["loc"]:  # an error of settings that exclude each other
        return first["msg"].removeprefix("Value error, ")
    name = ".".join(map(str, first["loc"]))
    if name in GONE:
        return f"{name} {GONE[name]}."
    if first["type"] == "extra_forbidden":
        hint = did_you_mean(name, ServerSettings.model_fields)
        return f"{file or 'The server'} has no setting '{name}'{hint}; `crossdraft serve --help` lists them."
    what = first["msg"].removeprefix("Value error, ")
    if name in OPTIONS and first["type"] == "value_error":  # the engine's own sentence
        return f"{what.removesuffix('.')}; {_remedy(name, file, flags)}."
    return f"The setting {name} is {first['input']!r}: {what}; {_remedy(name, file, flags)}."


def _remedy(name: str, file: Path | None, flags: Mapping[str, Any]) -> str:
    """Say where to change a wrong value: the place where it was found."""
    setting = name.partition(".")[0]
    variable = next(
        (one for one in os.environ if one.upper() == f"{PREFIX}{setting.upper()}" and os.environ[one]), None
    )
    if setting not in flags and variable is not None:
        return f"change {variable} in the environment"
    if setting not in flags and file is not None:
        return f"change it in {file}"
    return f"change {flag_of(setting)}"
