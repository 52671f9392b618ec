"""Tensors that are parked take no memory, and are the same objects with the same bits afterwards."""

from __future__ import annotations

import torch

from rftd.workers.weights.parked_tensors import ParkedTensors


def test_parameters_views_and_an_optimizer_go_on_as_if_nothing_had_been() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    twin = torch.nn.Linear(8, 4)
    twin.load_state_dict(model.state_dict())
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (model, twin)]
    view = model.weight.detach()[1:3]
    for step in range(4):
        batch = torch.randn(5, 8)
        for each, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            each(batch).square().sum().backward()
            optimizer.step()
        if step == 1:
            state = [value for entry in optimizers[0].state.values() for value in entry.values()]
            before = model.weight.detach().clone()
            parked = ParkedTensors([*model.parameters(), view, *state])
            assert parked.size_bytes == sum(each.nbytes for each in (*model.parameters(), *state))
            assert model.weight.untyped_storage().nbytes() == view.untyped_storage().nbytes() == 0
            assert torch.equal(parked.on_host(view), before[1:3])
            parked.back()
            assert torch.equal(model.weight, before)
            assert torch.equal(view, before[1:3])
            assert parked.size_bytes == 0
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True))
    assert view.data_ptr() == model.weight[1:3].data_ptr()


def test_one_memory_is_parked_once_and_nothing_is_nothing() -> None:
    tied = torch.arange(6.0)
    parked = ParkedTensors([tied, tied.view(2, 3), torch.empty(0)])
    assert parked.size_bytes == tied.numel() * 4
    parked.back()
    parked.back()
    assert tied.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
