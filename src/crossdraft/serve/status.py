"""`/health`, `/ready`, `/version`, `/metrics`, `/v1/models`."""

from fastapi import APIRouter
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from crossdraft import __version__
from crossdraft.serve.errors import READ, overloaded
from crossdraft.serve.gate import service_of
from crossdraft.serve.service import Service

router = APIRouter()


@router.api_route("/health", methods=READ)
async def health(request: Request) -> Response:
    """Answer 200 while the engine is open."""
    if service_of(request).engine.closed:
        raise overloaded("The engine has stopped; start the server again.", "engine_stopped")
    return JSONResponse({"status": "ok"})


@router.api_route("/ready", methods=READ)
async def ready(request: Request) -> Response:
    """Answer 200 while requests are accepted: after the warm-up, and until the server shuts down."""
    service_of(request).check_ready()
    return JSONResponse({"status": "ready"})


@router.api_route("/version", methods=READ)
async def version(request: Request) -> Response:
    """Answer with the version in vLLM's form."""
    return JSONResponse({"version": __version__})


@router.api_route("/metrics", methods=READ)
async def metrics(request: Request) -> Response:
    """Answer with all metrics in Prometheus' text format."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.api_route("/v1/models", methods=READ)
async def models(request: Request) -> Response:
    """List the model under each of its names."""
    service = service_of(request)
    return JSONResponse({"object": "list", "data": [_model(service, name) for name in service.names]})


@router.api_route("/v1/models/{name:path}", methods=READ)
async def model(request: Request, name: str) -> Response:
    """Describe the model, by a name of it."""
    service_of(request).check_model(name)
    return JSONResponse(_model(service_of(request), name))


def _model(service: Service, name: str) -> dict[str, object]:
    engine = service.engine
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "crossdraft",
        "max_model_len": engine.target.context,
        "crossdraft": {"version": __version__, "drafter": engine.drafter_spec or "none"},
    }
