"""The awaitable twins: the same answers, the event loop goes on, and a cancelled task stops its sweep."""

import asyncio
import threading

import pytest

import estream
from estream import aio
from estream.package.package import Package

TEXT = "Description: Play chess\nSection:"


def test_the_twins_give_the_same_answers(demo_package: Package):
    template = estream.RerankTemplate("{document} {query}:", yes=" games", no=" devel")
    with estream.load(demo_package.path) as model:

        async def all_at_once():
            return await asyncio.gather(
                aio.score(model, [TEXT, (TEXT, " games")]),
                aio.classify(model, "chess", ["games", "net"]),
                aio.rerank(model, "Section", ["chess", "compiler"], template=template),
                aio.embed(model, "chess", pooling="mean"),
            )

        scores, label, ranking, vector = asyncio.run(all_at_once())
        assert [each.to_json() for each in scores] == [each.to_json() for each in model.score([TEXT, (TEXT, " games")])]
        assert label.to_json() == model.classify("chess", ["games", "net"]).to_json()
        assert ranking.to_json() == model.rerank("Section", ["chess", "compiler"], template=template).to_json()
        assert vector.to_json() == model.embed("chess", pooling="mean").to_json()


def test_a_cancelled_task_stops_its_own_sweep_and_no_other(demo_package: Package, monkeypatch: pytest.MonkeyPatch):
    with estream.load(demo_package.path) as model:
        begun, real, cancels = threading.Event(), model.read, []

        def read(requests):
            begun.set()
            return real(requests)

        def cancel():
            cancels.append(1)
            type(model).cancel(model)

        monkeypatch.setattr(model, "read", read)
        monkeypatch.setattr(model, "cancel", cancel)

        async def cancelled():
            task = asyncio.create_task(aio.score(model, ["chess " * 1500] * 12, truncate=True))
            other = asyncio.create_task(aio.embed(model, "chess"))
            await asyncio.to_thread(begun.wait)
            waiting = asyncio.create_task(aio.score(model, TEXT))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await other, await waiting

        vector, score = asyncio.run(cancelled())
        assert score.to_json() == model.score(TEXT).to_json()
        assert vector.to_json() == model.embed("chess").to_json()
