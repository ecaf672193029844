# SPDX-License-Identifier: Apache-2.0
"""`KnownAnswers`: batched lookup of recorded latencies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import anyio.to_thread

from nni_latency_service.query import Answer

#: Largest number of lookups in a batch.
_MOST = 64

#: Longest time that new lookups wait for the current batch [s].
_SLOW = 0.05

#: Largest number of threads; one is enough unless the database is slow.
_THREADS = 8

_Batch = list[tuple[str, str, asyncio.Future[Answer | None]]]


class KnownAnswers:
    """Looks up recorded latencies in a thread; requests that arrive meanwhile form the next batch.

    A thread and a transaction per request would take longer than the lookups. An instance belongs to one event loop.

    Parameters
    ----------
    answer_all : callable
        Takes keys and ids of platforms, and returns an answer or None for each.
    """

    def __init__(self, answer_all: Callable[[Sequence[tuple[str, str]]], list[Answer | None]]) -> None:
        self._answer_all = answer_all
        self._waiting: _Batch = []
        self._working: asyncio.Task[None] | None = None
        self._limiter: anyio.CapacityLimiter | None = None

    async def ask(self, key: str, platform: str) -> Answer | None:
        """Return the recorded latency of a key on a platform.

        Raises
        ------
        LatencyError
            If the database cannot be read.
        """
        answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, platform, answered))
        if self._working is None:
            self._working = asyncio.ensure_future(self._work())
        return await answered

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                await asyncio.wait([asyncio.ensure_future(self._answer(batch))], timeout=_SLOW)
        finally:
            self._working = None

    async def _answer(self, batch: _Batch) -> None:
        try:
            found = await self._in_thread([(key, platform) for key, platform, _ in batch])
        except Exception as error:  # any failure is passed to the callers
            if len(batch) > 1:
                # A single request may be the cause: retry them one by one.
                for item in batch:
                    await self._answer([item])
            elif not batch[0][2].done():
                batch[0][2].set_exception(error)
            return
        for (_, _, answered), answer in zip(batch, found, strict=True):
            if not answered.done():
                answered.set_result(answer)

    async def _in_thread(self, asked: list[tuple[str, str]]) -> list[Answer | None]:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(self._answer_all, asked, limiter=self._limiter)
