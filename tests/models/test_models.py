"""Models have the sizes they claim; ResNet-18 is torchvision's with another stem."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dgt.models import SmallCNN, StridedCNN, decay_groups, image_model, resnet18, resnet20
from dgt.models.transformer import CharTransformer


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_parameter_counts(norm: str) -> None:
    assert count(resnet18(norm=norm)) == 11_173_962
    assert count(resnet20(norm=norm)) == 272_474
    assert count(SmallCNN(norm=norm)) == 24_346
    assert count(StridedCNN(norm=norm)) == 53_794
    assert StridedCNN(norm=norm)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_resnet18_computes_what_torchvision_computes() -> None:
    from torchvision.models import resnet18 as theirs

    theirs = theirs(num_classes=10)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    ours = resnet18()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_weight_decay_is_on_convolutions_and_linear_weights_only() -> None:
    model = resnet18()
    decayed, rest = decay_groups(model, 5e-4)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {
        name for name, p in model.named_parameters() if p.ndim > 1 and name.endswith("weight")
    }
    assert (decayed["weight_decay"], rest["weight_decay"]) == (5e-4, 0.0)
    assert len(decayed["params"]) + len(rest["params"]) == len(list(model.parameters()))


def test_group_norm_keeps_no_statistics() -> None:
    assert list(resnet20(norm="group").buffers()) == []
    assert list(resnet20(norm="batch").buffers())


def test_the_start_depends_on_the_seed_and_leaves_the_callers_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, again, other = (image_model("cnn", 10, "batch", seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one.fc.weight, again.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)


def test_the_transformer_does_not_look_ahead() -> None:
    model = CharTransformer(symbols=11, context=8, layers=2, heads=2, width=16).eval()
    text = torch.randint(0, 11, (1, 8))
    changed = text.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % 11
    difference = (model(text) - model(changed)).abs().amax((0, 2))
    assert difference[:5].max() < 1e-6
    assert difference[5:].min() > 1e-4
