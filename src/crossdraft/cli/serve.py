"""`crossdraft serve`: an OpenAI-compatible server on a pair. Its options are made from the settings' schema."""

import inspect
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

from crossdraft.errors import CrossdraftError
from crossdraft.signals import Terminated, after_imports, handled, terminate

if TYPE_CHECKING:
    from socket import socket as Socket

    from crossdraft.serve.settings import ServerSettings

FLAGS = "crossdraft.flags"  # key in a context's `meta` for settings given on the command line


class SettingsGroup(TyperGroup):
    """Group with one option for each setting, made only when needed: pydantic is slow to import."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own options, and one for each setting."""
        return [*super().get_params(ctx), *setting_options()]


def setting_options(*groups: str) -> list[Any]:
    """One option for each setting (of these groups, if any), which records in the context that it was given."""
    from crossdraft.cli.options import described_option, flag_type
    from crossdraft.options import OPTIONS, kinds
    from crossdraft.serve.settings import all_settings, group_of

    parameters: list[inspect.Parameter] = []
    settings = {name: one for name, one in all_settings().items() if not groups or group_of(one) in groups}
    for name, setting in settings.items():
        kind = kinds().get(name, setting.annotation)
        words = OPTIONS[name].words if name in OPTIONS else _usual(name, kind)
        flags = [OPTIONS[name].flag or name, name] if name in OPTIONS else [name]
        says = str(setting.description)
        option = described_option(dict.fromkeys(flags), kind, setting.default, says, words, panel=group_of(setting))
        annotation = Annotated[flag_type(kind) | None, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def noted(**given: Any) -> None:
        """Do nothing: typer makes options of the parameters."""

    vars(noted)["__signature__"] = inspect.Signature(parameters)
    noted.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    made = typer.Typer(add_completion=False)
    made.command()(noted)
    options = [option for option in typer.main.get_command(made).params if option.name in settings]
    for option in options:
        option.callback, option.expose_value = _note, False
    return options


def _usual(name: str, annotation: Any) -> tuple[str, ...]:
    """Values of a server setting that a shell may offer."""
    from crossdraft.methods import METHODS

    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return ("auto", "none", *METHODS) if name == "drafter" else ()


def _note(ctx: Any, option: Any, value: Any) -> Any:
    if value is not None:
        ctx.meta.setdefault(FLAGS, {})[option.name] = value
    return value


app = typer.Typer(cls=SettingsGroup, help="Serve a pair over HTTP, as OpenAI's API.", add_completion=False)


@app.callback(invoke_without_command=True)
def serve(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings by name, in YAML; flags and CROSSDRAFT_… go before it."),
    ] = None,
) -> None:
    """Serve a pair over HTTP, with OpenAI's API: /v1/chat/completions, /v1/models, /v1/files; /metrics for Prometheus.

    Every setting may also stand in a file (--config) or in the environment (CROSSDRAFT_PORT=8080 …).
    """
    if ctx.invoked_subcommand is not None:
        return
    from crossdraft.cli.main import complain, with_flags
    from crossdraft.serve.settings import read_settings, unknown_variables

    flags = ctx.meta.get(FLAGS, {})
    try:
        settings = read_settings(config, flags)
        if (unknown := unknown_variables(os.environ)) is not None:
            typer.echo(f"crossdraft: {unknown}", err=True)
        # Until the server runs, with handlers of its own, SIGTERM interrupts the start, and what was begun is ended.
        with suppress(Terminated), handled(after_imports(terminate), signal.SIGTERM):
            _serve(settings)
    except CrossdraftError as error:  # settings of the file and the environment keep their names
        raise typer.Exit(complain(with_flags(str(error), flags))) from None


def check_settings(settings: "ServerSettings") -> None:
    """Refuse a target, a drafter or a media folder that does not exist, before slow imports."""
    from crossdraft.cli.options import check_device, check_models
    from crossdraft.methods import check_drafter_files, check_spec, read_spec

    if settings.media_root is not None and not settings.media_root.is_dir():
        raise CrossdraftError(f"There is no media folder at {settings.media_root}; make it, or check the path.")
    spec = None if settings.drafter in ("auto", "none") else read_spec(settings.drafter)
    if spec is not None:
        check_spec(spec)
    for name in ("device", "draft_device"):
        if (device := getattr(settings.engine, name)) is not None:
            check_device(name, device)
    check_models(settings.target, shows=False)
    if spec is not None:
        check_drafter_files(spec, settings.target)


def _check_files(settings: "ServerSettings") -> str:
    """Refuse a folder, keys and certificates that cannot be used; return the scheme of the server's addresses."""
    from crossdraft.serve.keys import Client, read_keys
    from crossdraft.serve.tls import server_context

    if settings.upload_folder is not None and settings.upload_folder.exists() and not settings.upload_folder.is_dir():
        raise CrossdraftError(f"Uploads cannot be kept in {settings.upload_folder}, which is no folder; name another.")
    if settings.keys_file is not None:
        read_keys(settings.keys_file, Client("", None, None))
    return "http" if server_context(settings) is None else "https"


def _bound(settings: "ServerSettings") -> "Socket":
    """Make the listening socket.

    Raises:
        CrossdraftError: the port is taken, or the address is not this machine's.
    """
    from crossdraft.serve.sockets import bound_socket

    try:
        return bound_socket(settings.host, settings.port)
    except OSError as error:
        raise CrossdraftError(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}; choose another --port."
        ) from None


def _serve(settings: "ServerSettings") -> None:
    scheme = _check_files(settings)
    check_settings(settings)
    socket = _bound(settings)
    # Imported after the checks that need no import: these imports take seconds.
    from crossdraft.cli.reporting import hush
    from crossdraft.serve.logs import start_logging
    from crossdraft.serve.server import DrainingServer, configured
    from crossdraft.serve.service import Service, load_engine

    hush()
    start_logging(settings.log_format)

    def started() -> None:
        host, port = socket.getsockname()[:2]
        address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        typer.echo(f"{settings.model} is ready on {address} (Ctrl-C ends it)")

    with socket, load_engine(settings) as engine:
        service = Service(settings, engine)
        try:
            DrainingServer(configured(service), service, started).run([socket])
        finally:
            service.close()
    # Not on stdout: whoever read the first line there may have closed it.
    logging.getLogger("crossdraft.serve").info("ended")


@app.command("new-key")
def new_key(
    name: Annotated[str, typer.Argument(help="Name of the client.")],
    file: Annotated[
        Path | None, typer.Option(help="Append the record to this keys file; by default it is shown.")
    ] = None,
    scopes: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="What the key may use, comma-separated: chat, edge, files, media, metrics, watch; by default all.",
        ),
    ] = None,
) -> None:
    """Make an API key. It is shown once; the keys file holds its hash alone."""
    from crossdraft.serve.keys import append_key, line_of, new_record
    from crossdraft.serve.keys import new_key as random_key

    key = random_key()
    record = new_record(name, key, None if scopes is None else [one.strip() for one in scopes.split(",")])
    if file is not None:
        append_key(file, record)
    else:
        typer.echo(f"- {line_of(record)}  # a line of the keys file", err=True)
    typer.echo(key)
