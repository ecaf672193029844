# SPDX-License-Identifier: Apache-2.0
"""What is asked at the same time is asked together, and nobody is harmed by what others ask."""

from __future__ import annotations

import asyncio
import threading

import pytest
from nni_latency_service._known import KnownAnswers
from nni_latency_service.query import Answer

from nni_latency.errors import OutputError


def _answer(key, platform):
    return Answer(1.0, 1.0, 1.0, key=key, platform=platform, source="record")


def _ask_all(known, keys):
    async def ask():
        return await asyncio.gather(*(known.ask(key, "p") for key in keys), return_exceptions=True)

    return asyncio.run(ask())


def test_what_is_asked_at_once_is_one_question():
    batches = []

    def answer_all(asked):
        batches.append(len(asked))
        return [_answer(*question) if question[0] != "none" else None for question in asked]

    keys = [str(number) for number in range(100)] + ["none"]
    found = _ask_all(KnownAnswers(answer_all), keys)
    assert [answer and answer.key for answer in found] == [*keys[:-1], None]
    assert batches == [64, 37]


def test_a_question_that_fails_harms_no_other():
    def answer_all(asked):
        if ("bad", "p") in asked:
            raise OutputError("Cannot read it.")
        return [_answer(*question) for question in asked]

    first, bad, last = _ask_all(KnownAnswers(answer_all), ["a", "bad", "b"])
    assert (first.key, last.key) == ("a", "b")
    assert str(bad) == "Cannot read it."


def test_questions_do_not_wait_for_one_that_takes_long():
    begun, free = threading.Event(), threading.Event()

    def answer_all(asked):
        if asked[0][0] == "slow":
            begun.set()
            assert free.wait(300)
        return [_answer(*question) for question in asked]

    async def ask():
        known = KnownAnswers(answer_all)
        slow = asyncio.ensure_future(known.ask("slow", "p"))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert (await known.ask("quick", "p")).key == "quick"
        assert not slow.done()
        free.set()
        return await slow

    assert asyncio.run(ask()).key == "slow"


def test_who_goes_away_meanwhile_is_forgotten():
    async def ask():
        known = KnownAnswers(lambda asked: [_answer(*question) for question in asked])
        gone, stays = (asyncio.ensure_future(known.ask(key, "p")) for key in "ab")
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await stays

    assert asyncio.run(ask()).key == "b"
