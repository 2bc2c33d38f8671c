"""Steps between x and q, k: heard from a module's own layers, shown only where v proves the layout."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from attnviz.sources.models.capture.steps import find_inputs, find_output_weight, listen

B, L, H, K, E, D = 2, 5, 4, 2, 3, 12


def heads(flat: torch.Tensor, n: int) -> torch.Tensor:
    return flat.reshape(B, L, n, -1).transpose(1, 2)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = torch.nn.Linear(D, H * E), torch.nn.Linear(D, K * E)
        self.q_norm = torch.nn.LayerNorm(E)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = self.q_norm(self.q_proj(x).reshape(B, L, H, E))
        return q.transpose(1, 2), heads(self.k_proj(x), K)


def test_projections_and_norms_are_heard_and_hooks_go() -> None:
    module, x = Attention(), drawn(B, L, D)
    with torch.no_grad():
        with listen([module, module]) as heard:
            q, k = module(x)
            steps = find_inputs(heard(module), 2 * q, k, k)
            assert heard(torch.nn.Identity()) == {}
        assert not any(child._forward_hooks for child in module.modules())
        assert set(steps) == {"x", "q_projected", "q_normed"}  # k is as it was projected
        assert torch.equal(steps["x"], x)
        assert torch.equal(steps["q_projected"], heads(module.q_proj(x), H))
        assert torch.equal(steps["q_normed"], q)


@pytest.mark.parametrize("by_head", [False, True])
def test_a_fused_projection_is_cut_where_it_gives_v(by_head: bool) -> None:
    fused = drawn(B, L, 3 * H * E)
    if by_head:
        parts = fused.reshape(B, L, H, 3, E).unbind(3)
        q, k, v = (part.transpose(1, 2) for part in parts)
    else:
        q, k, v = (heads(part, H) for part in fused.chunk(3, -1))
    found = find_inputs({"fused": fused, "x": drawn(B, L, D)}, q + 1, k + 1, v)
    assert torch.equal(found["q_projected"], q)
    assert torch.equal(found["k_projected"], k)
    assert "x" in found


def test_a_fused_projection_that_v_does_not_prove_is_not_shown() -> None:
    fused = drawn(B, L, 3 * H * E)
    q, k, v = (heads(part, H) for part in fused.chunk(3, -1))
    assert find_inputs({"fused": fused, "x": drawn(B, L, D)}, q, k, v + 1) == {}
    assert find_inputs({"fused": fused[..., 1:]}, q, k, v) == {}


def test_x_of_another_length_is_not_where_q_comes_from() -> None:
    q, k = drawn(B, H, L, E), drawn(B, K, L, E)
    flat = drawn(B, L, H * E)
    assert "x" not in find_inputs({"q": flat, "x": drawn(B, L + 1, D)}, q, k, k)
    assert "x" in find_inputs({"q": flat, "x": drawn(B, L, D)}, q, k, k)


def test_the_output_weight_is_found_by_name_and_size() -> None:
    linear = torch.nn.Linear(H * E, D + 1)
    module = torch.nn.Module()
    module.o_proj = linear
    assert torch.equal(find_output_weight(module, None, H * E), linear.weight.T)
    assert find_output_weight(module, None, H * E + 1) is None
    parent = SimpleNamespace(output=SimpleNamespace(dense=linear))  # as BERT has it
    found = find_output_weight(torch.nn.Module(), parent, H * E)  # type: ignore[arg-type]
    assert torch.equal(found, linear.weight.T)
