"""Memory over HTTP: a router for FastAPI apps, and the page of `memory-tasks up --web`. Needs the extra `web`."""

from memory_tasks.web.router import Identify, router

__all__ = ["Identify", "router"]
