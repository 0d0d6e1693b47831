"""`crossdraft serve`: an OpenAI-compatible server on a pair. Its options are made from the settings' schema."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import typer

from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.serve.settings import ServerSettings

app = typer.Typer(help="Serve a pair over HTTP, as OpenAI's API.", add_completion=False)

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings by name, in YAML; flags and CROSSDRAFT_… go before it."),
]


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer with one option for each setting; it gets those that were given as `flags`."""
    parameters = [one for one in inspect.signature(command).parameters.values() if one.name != "flags"]
    own = {one.name for one in parameters}
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters] + _settings()

    def grouped(**given: Any) -> None:
        flags = {name: value for name, value in given.items() if name not in own and value is not None}
        command(**{name: given[name] for name in own}, flags=flags)

    grouped.__doc__, grouped.__name__ = command.__doc__, command.__name__
    vars(grouped)["__signature__"] = inspect.Signature(parameters)
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return grouped


def _settings() -> list[inspect.Parameter]:
    """A parameter for each setting; none where what the server needs is not installed, which its command then says."""
    try:
        from crossdraft.serve.settings import ServerSettings, group_of
    except ModuleNotFoundError:
        return []
    found: list[inspect.Parameter] = []
    for name, setting in ServerSettings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        default = "" if setting.default in (None, (), {}) else f" [default: {setting.default}]"
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if setting.annotation is bool else flag,
            help=f"{setting.description}{default}",
            rich_help_panel=group_of(setting),
            show_default=False,
        )
        kind = Annotated[_flag_type(setting.annotation) | None, option]
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))
    return found


def _flag_type(annotation: Any) -> Any:
    """What typer makes of a setting: numbers and truth values, else text."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    return annotation if annotation in (bool, int, float) else str


@app.callback(invoke_without_command=True)
@setting_options
def serve(ctx: typer.Context, config: Config = None, flags: dict[str, Any] | None = None) -> None:
    """Serve a pair over HTTP, with OpenAI's API: /v1/chat/completions, /v1/models, /v1/files; /metrics for Prometheus.

    Every setting may also stand in a file (--config) or in the environment (CROSSDRAFT_PORT=8080 …).
    """
    if ctx.invoked_subcommand is not None:
        return
    from crossdraft.serve.settings import read_settings

    given = dict(flags or {})
    if "options" in given:
        try:
            given["options"] = json.loads(given["options"])
        except ValueError:
            raise CrossdraftError(
                f'--options is {given["options"]!r}, no JSON; write {{"kv_bytes": 1000000}}.'
            ) from None
    _serve(read_settings(config, given))


def _serve(settings: "ServerSettings") -> None:
    from crossdraft.cli.reporting import hush
    from crossdraft.serve.logs import start_logging
    from crossdraft.serve.server import bound_socket, run
    from crossdraft.serve.service import Service, load_engine

    try:
        socket = bound_socket(settings.host, settings.port)  # before the models are loaded, which takes seconds
    except OSError as error:
        raise CrossdraftError(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}; choose another --port."
        ) from None
    hush()
    start_logging(settings.log_format)
    with socket, load_engine(settings) as engine:
        service = Service(settings, engine)
        try:
            host, port = socket.getsockname()[:2]
            address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            run(service, [socket], lambda: typer.echo(f"{settings.model} on {address} (Ctrl-C ends it)"))
        finally:
            service.close()


@app.command("new-key")
def new_key(
    name: Annotated[str, typer.Argument(help="Of the client.")],
    file: Annotated[
        Path | None, typer.Option(help="Append the record to this keys file; by default it is shown.")
    ] = None,
) -> None:
    """Make an API key. It is shown once; the keys file holds its hash alone."""
    from crossdraft.serve.keys import KeyRecord, append_key, digest_of, line_of
    from crossdraft.serve.keys import new_key as random_key

    key = random_key()
    record = KeyRecord(name=name, sha256=digest_of(key))
    if file is not None:
        append_key(file, record)
    else:
        typer.echo(f"- {line_of(record)}  # a line of the keys file", err=True)
    typer.echo(key)
