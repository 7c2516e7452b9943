"""Recipes are values: the same plan in Python and on the command line, features that depend on one image alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import saltflat as sf
from saltflat import recipes
from saltflat.models.vectors import CentredLinear, centring_loss
from saltflat.recipes.features import Features
from saltflat.recipes.known import LEAST, MOST, RECIPES, between
from saltflat.recipes.rows import LENGTH


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("epsilon", [LEAST, 1.0, 2.5, MOST])
def test_a_recipe_keeps_its_budget_and_its_rule(name: str, epsilon: float) -> None:
    """Fails when a recipe names its own data set among those it was chosen on."""
    recipe = recipes.best(name, epsilon=epsilon)
    assert 0.95 * epsilon < recipe.plan.epsilon <= epsilon
    assert recipe.chosen_on
    assert name not in recipe.chosen_on
    assert recipe.plan.sampling.population == RECIPES[name].population
    width = recipe.model().head.in_features
    side, colours = (32, 3) if name == "cifar10" else (28, 1)
    plain = replace(recipe.features, metric=None)  # a metric changes no width, and takes minutes
    assert plain(torch.rand(2, colours, side, side)).shape == (2, width)


def test_a_population_is_declared_and_never_counted() -> None:
    declared = recipes.best("mnist", epsilon=1.0, population=50_000).plan
    assert declared.sampling.population == 50_000
    assert declared.sampling.batch_size == recipes.best("mnist", epsilon=1.0).plan.sampling.batch_size


def test_what_has_no_recipe_is_refused_by_name() -> None:
    with pytest.raises(
        sf.InputError, match=r"name='mnits' has no recipe.*\n.*'mnist'.*cifar10, fashion-mnist"
    ):
        recipes.best("mnits", epsilon=1.0)
    for epsilon in (0.4, 9.0, float("inf"), float("nan")):
        with pytest.raises(sf.InputError, match=r"0\.5 <= epsilon <= 8"):
            recipes.best("mnist", epsilon=epsilon)


def test_settings_between_measured_budgets() -> None:
    anchors = {1.0: 8.0, 4.0: 32.0}
    assert [between(epsilon, anchors) for epsilon in (0.5, 1, 2, 4, 8)] == [8, 8, 16, 32, 32]


@pytest.mark.parametrize(
    "features", [Features(), Features(scales=(2, 3)), Features(root=True, mirrored=True)]
)
def test_features_have_one_length_and_depend_on_one_image_alone(features: Features) -> None:
    """Fails when group norm is replaced by statistics of the batch."""
    images = torch.rand(5, 3, 32, 32)
    rows = features(images)
    assert torch.allclose(rows.norm(dim=1), torch.full((5,), LENGTH), rtol=1e-4)
    assert torch.allclose(features(images[2:3]), rows[2:3], atol=1e-4)


def test_mirrored_features_are_those_of_the_mirror_image() -> None:
    images = torch.rand(3, 1, 28, 28)
    assert torch.allclose(Features(mirrored=True)(images), Features(mirrored=True)(images.flip(3)), atol=1e-4)
    assert not torch.allclose(Features()(images), Features()(images.flip(3)), atol=1e-2)


def test_features_are_kept_by_content_and_settings(tmp_path: Path) -> None:
    images = torch.rand(3, 1, 28, 28)
    first = Features()(images, tmp_path)
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    assert torch.equal(Features()(images, tmp_path), first)
    assert file.stat().st_mtime_ns == written
    Features(root=True)(images, tmp_path)
    Features()(images + 0.01, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_the_mean_is_learned_within_the_clip() -> None:
    """One gradient of one model: the sum is that of whole gradients, each clipped once. Fails when the pull on the
    mean is left out of the norm."""
    torch.manual_seed(1)
    model = CentredLinear(6, 3, share=0.4, unit=0.2)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    inputs, targets = torch.randn(9, 6), torch.randint(0, 3, (9,))
    total = sf.clipped_sum(model, centring_loss, inputs, targets, clip_norm=0.5).grads
    expected = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for row in range(9):
        loss = centring_loss(model(inputs[row : row + 1]), targets[row : row + 1]).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        factor = min(1.0, 0.5 / float(torch.cat([grad.flatten() for grad in grads]).norm()))
        for name, grad in zip(expected, grads):
            expected[name] += factor * grad
    for name, one in expected.items():
        assert torch.allclose(total[name], one, atol=1e-5), name


def test_the_pull_on_the_mean_has_the_length_that_was_asked_for() -> None:
    model = CentredLinear(6, 3, share=0.4, unit=0.2)
    inputs = torch.randn(1, 6)
    centring_loss(model(inputs), torch.tensor([1])).sum().backward()
    assert torch.allclose(model.mean.grad, -0.4 * inputs[0], atol=1e-6)
    bad = centring_loss(model(inputs), torch.tensor([7]))
    assert float(bad.detach().sum()) == 0  # a label outside the classes adds nothing


def test_the_mean_is_found_without_noise() -> None:
    """Fails when the pull has the wrong sign."""
    torch.manual_seed(2)
    inputs = torch.randn(256, 5) + torch.tensor([3.0, -2.0, 0.0, 1.0, 5.0])
    model = CentredLinear(5, 2, share=0.5, unit=0.1)
    plan = sf.plans.sgd(population=256, batch_size=256, steps=150, learning_rate=0.4)
    sf.fit(model, (inputs, torch.randint(0, 2, (256,))), plan, loss_fn=centring_loss, progress=False)
    assert torch.allclose(model.unit * model.mean.detach(), inputs.mean(0), atol=0.3)
