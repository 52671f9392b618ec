"""Routes: steps, batches, evaluations."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Response

from rftd.daemon.api.pages import BatchPage, EvalList, StepList
from rftd.daemon.api.parameters import After, Int, Limit, Name, Offset, Step, Word
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.ops.errors import NotFoundError
from rftd.storage.queries.batches import list_batches, list_items
from rftd.storage.queries.shares import shares_of
from rftd.storage.queries.steps import list_evals, list_steps


def router(services: Services) -> APIRouter:
    """The routes of what an experiment did."""
    routes = APIRouter(prefix="/v1/experiments/{name}", tags=["history"])

    @routes.get("/steps", responses=answers(StepList))
    async def steps(
        name: Name, first: Offset = 0, last: Int = None, limit: Limit = 200, after: After = None
    ) -> Response:
        """Training steps in order, with their metrics; of each the newest generation. Inherited ones are marked."""
        id = await services.find(name, after)
        async with services.read() as connection:
            bound = last if last is not None else 1 << 62
            rows = await list_steps(connection, id, first_step=first, last_step=bound, limit=limit + 1)
        return respond(StepList(items=rows[:limit], next=rows[limit].step if len(rows) > limit else None))

    @routes.get("/batches/{step}", responses=answers(BatchPage))
    async def batch(name: Name, step: Step, after: After = None) -> Response:
        """What one step is trained on, item by item; of a step that it shares, what its ancestor trained."""
        id = await services.find(name, after)
        async with services.read() as connection:
            owner = next(each for each in await shares_of(connection, id) if step <= each.last)
            found = await list_batches(connection, owner.experiment, first_step=step, last_step=step)
            if not found:
                raise NotFoundError(f"no batch was planned for step {step}", field="step")
            return respond(BatchPage(batch=found[-1], items=await list_items(connection, UUID(found[-1].id))))

    @routes.get("/evals", responses=answers(EvalList))
    async def evals(name: Name, taskset: Word = None, after: After = None) -> Response:
        """Evaluations in the order of weight versions. Inherited ones are marked."""
        id = await services.find(name, after)
        async with services.read() as connection:
            return respond(EvalList(items=await list_evals(connection, id, taskset=taskset)))

    return routes
