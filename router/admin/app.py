"""The admin application: its table of calls, and errors in one shape."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from indexer.http_listener import begin, take_body
from router.admin.access import check_access
from router.admin.fleet import Fleet, Preview
from router.admin.handlers import Handlers, error_response
from router.config import Settings
from router.core.routing import RoutingCore
from router.engines.control import Order
from router.errors import BodyTooLarge, InternalError, MethodNotAllowed, RouterError, UnknownPath
from router.metrics import Metrics

_logger = logging.getLogger("kvgate.admin")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_admin_app(
    *,
    core: RoutingCore,
    fleet: Fleet,
    metrics: Metrics,
    settings: Settings,
    explain_body: Preview,
    clock: Callable[[], float],
) -> web.Application:
    """An application ready for a runner. Bodies are bounded by `max_body`, as on the public port. `clock`:
    the monotonic seconds of the core."""
    handlers = Handlers(
        core=core, fleet=fleet, metrics=metrics, settings=settings, preview=explain_body, clock=clock
    )
    app = web.Application(middlewares=[_answers(settings)], client_max_size=settings.max_body)
    for method, path, handler in _calls(handlers):
        app.router.add_route(method, path, handler)
    return app


def _calls(handlers: Handlers) -> list[tuple[str, str, Handler]]:
    return [
        ("GET", "/health", handlers.health),
        ("GET", "/metrics", handlers.metrics),
        ("GET", "/engine_metrics", handlers.engine_metrics),
        ("GET", "/workers", handlers.list_workers),
        ("POST", "/workers", handlers.add_worker),
        ("GET", "/workers/{id}", handlers.show_worker),
        ("PUT", "/workers/{id}", handlers.drain_worker),
        ("DELETE", "/workers/{id}", handlers.remove_worker),
        ("POST", "/workers/{id}/reset_prefix_cache", handlers.order(Order.RESET)),
        ("POST", "/workers/{id}/sleep", handlers.order(Order.SLEEP)),
        ("POST", "/workers/{id}/wake_up", handlers.order(Order.WAKE)),
        ("GET", "/dump", handlers.dump),
        ("GET", "/snapshot", handlers.snapshot),
        ("GET", "/explain", handlers.explain),
        ("POST", "/route", handlers.route),
        ("GET", "/policy", handlers.show_policy),
        ("PUT", "/policy", handlers.change_policy),
        # As older routers have it.
        ("GET", "/list_workers", handlers.list_worker_urls),
        ("GET", "/add_worker", handlers.add_worker_by_query),
        ("POST", "/add_worker", handlers.add_worker_by_query),
        ("GET", "/remove_worker", handlers.remove_worker_by_query),
        ("POST", "/remove_worker", handlers.remove_worker_by_query),
    ]


def _answers(settings: Settings) -> Middleware:
    """Access first; then every error as JSON, ours and aiohttp's."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            begin(request)
            check_access(request, settings)
            await take_body(request)
            return await handler(request)
        except RouterError as error:
            return error_response(error)
        except web.HTTPException as error:
            return error_response(_translated(request, error))
        except Exception:
            _logger.exception("admin call %s %s failed", request.method, request.path)
            return error_response(InternalError("The admin port failed; its log says why"))

    return answer


def _translated(request: web.Request, error: web.HTTPException) -> RouterError:
    match error:
        case web.HTTPMethodNotAllowed():
            return MethodNotAllowed(error.method, sorted(error.allowed_methods))
        case web.HTTPRequestEntityTooLarge():
            return BodyTooLarge(error.text or "The body is too large")
        case web.HTTPNotFound():
            return UnknownPath(f"No admin call at {request.path}; there are: {_paths(request.app)}")
    return _OtherError(error)


class _OtherError(RouterError):
    """Whatever else aiohttp finds wrong with a request, under its own status."""

    type = "invalid_request_error"
    code = "bad_request"

    def __init__(self, error: web.HTTPException) -> None:
        super().__init__(error.text or error.reason)
        self.status = error.status


def _paths(app: web.Application) -> str:
    return ", ".join(sorted({resource.canonical for resource in app.router.resources()}))
