"""Calls that block, for asyncio."""

from __future__ import annotations

import asyncio
import threading
from typing import Callable, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def on_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a call on a thread of its own. Cancelled, the call goes on, and its outcome is lost.

    asyncio's own pool has a few threads: long calls would keep short ones waiting.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            failed = error
        try:
            loop.call_soon_threadsafe(settle, result, failed)
        except RuntimeError:
            pass  # The loop has been closed: nobody waits.

    threading.Thread(target=run, daemon=True, name="forkyard").start()
    return await outcome
