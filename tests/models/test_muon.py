"""The warm-up's optimizer: what it does to singular values, and how far it steps."""

import pytest
import torch

from models.muon import Muon, orthogonalised


def test_singular_values_move_to_about_one() -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, 16, 40, generator=generator) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3


def test_singular_vectors_stay() -> None:
    generator = torch.Generator().manual_seed(1)
    u, s, v = torch.linalg.svd(torch.randn(6, 8, generator=generator), full_matrices=False)
    turned = u.T @ orthogonalised((u * s @ v)[None])[0] @ v.T
    assert float((turned - torch.diag(turned.diag())).abs().max()) < 1e-4


@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_the_first_step_by_hand(shape: tuple[int, int]) -> None:
    # a rank-one gradient: its one singular value is 1 after the norm, and p(p(p(p(p(1))))) after five steps
    matrix = torch.zeros(shape, requires_grad=True)
    matrix.grad = torch.zeros(shape)
    matrix.grad[0, 0] = 5.0
    Muon([matrix], 0.1, weight_decay=0.0).step()
    value = 1.0
    for _ in range(5):
        value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
    assert float(matrix[0, 0].detach()) == pytest.approx(-0.1 * 0.2 * 3**0.5 * value, rel=1e-4)
    assert int((matrix != 0).sum()) == 1


def test_weight_decay_is_decoupled() -> None:
    matrix = torch.ones(2, 2, requires_grad=True)
    matrix.grad = torch.zeros(2, 2)
    Muon([matrix], 0.5, weight_decay=0.1).step()
    assert matrix.tolist() == [[pytest.approx(0.95)] * 2] * 2
