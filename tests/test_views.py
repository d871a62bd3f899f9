"""Views of images and texts: the property arrives, the rest stays, nothing is random."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from debiaser.auditing.swap_test import find_views
from debiaser.auditing.views import (
    casing,
    correlations,
    cosines,
    from_blocks,
    image_views,
    luma,
    read_words,
    swap_words,
    take_casing,
    take_length,
    take_sentence,
    text_views,
    tint_statistics,
    to_blocks,
    with_matters,
    word_view,
)
from debiaser.data.bias import PALETTE
from debiaser.errors import Misuse, Problem

VIEWS = image_views()
BY_NAME = {view.name: view for view in VIEWS}
SMALL = [view for view in VIEWS if view.name != "surroundings"]  # which only photographs have


def noise(n: int = 4, size: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def smooth(n: int = 4, size: int = 32, seed: int = 0) -> torch.Tensor:
    """Images with colours, edges and soft parts, away from black and white so that nothing is clipped."""
    small = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(seed)) * 80 + 90
    return torch.nn.functional.interpolate(small, size=(size, size), mode="bilinear").to(torch.uint8)


def drawn(bias: list[int], size: int = 28) -> tuple[torch.Tensor, torch.Tensor]:
    """Strokes with soft edges on black, each in one colour of the palette, and their grey levels."""
    grey = torch.rand(len(bias), 1, size, size, generator=torch.Generator().manual_seed(1))
    grey = grey * (grey > 0.7)
    grey[:, :, 5, 5:20] = 1
    colours = torch.from_numpy(PALETTE[bias]).float()[:, :, None, None]
    return (255 * grey * colours).round().to(torch.uint8), grey


@pytest.mark.parametrize("view", SMALL, ids=lambda view: view.name)
@pytest.mark.parametrize("size", [28, 32, 45])
def test_own_property_changes_nothing(view, size):
    x = smooth(size=size)
    assert (view.swap(x, x).int() - x.int()).abs().max() <= 1


@pytest.mark.parametrize("view", SMALL, ids=lambda view: view.name)
def test_swaps_are_of_the_same_kind_and_do_not_depend_on_the_batch(view):
    x, donors = smooth(6), noise(6)
    swapped = view.swap(x, donors)
    assert swapped.shape == x.shape and swapped.dtype == torch.uint8 and (swapped != x).any()
    alone = torch.cat([view.swap(x[each : each + 1], donors[each : each + 1]) for each in range(6)])
    assert (alone.int() - swapped.int()).abs().max() <= 1  # sums in another order may round the other way
    as_numbers = view.swap(x / 255, donors / 255)
    assert as_numbers.dtype == torch.float32 and torch.allclose(as_numbers * 255, swapped.float(), atol=0.51)


def test_a_drawing_takes_the_donors_colour_and_keeps_its_shape():
    others = [each for each in range(10) for _ in range(9)]
    targets = [(each + step) % 10 for each in range(10) for step in range(1, 10)]
    (x, grey), (donors, _) = drawn(others), drawn(targets)
    swapped = BY_NAME["colour"].swap(x, donors)
    wanted = 255 * grey * torch.from_numpy(PALETTE[targets]).float()[:, :, None, None]
    bright = (grey > 0.5).expand_as(x)
    assert (swapped.float() - wanted)[bright].abs().mean() < 4
    assert (swapped[(grey == 0).expand_as(x)] == 0).all()


def test_colour_moves_the_tints_to_the_donors_mean():
    x, tint = smooth(seed=1), torch.tensor([1, 0.6, 0.4]).view(3, 1, 1)
    donors = (smooth(seed=2) * tint).to(torch.uint8)
    mean, _ = tint_statistics(BY_NAME["colour"].swap(x, donors).float())
    before, _ = tint_statistics(x.float())
    wanted, _ = tint_statistics(donors.float())
    assert (mean - wanted).abs().mean() < 0.1 * (before - wanted).abs().mean()


def test_colour_of_flat_and_of_grey_pictures():
    colour = BY_NAME["colour"]
    for level in (0, 255):
        flat = torch.full((2, 3, 16, 16), level, dtype=torch.uint8)
        assert (colour.swap(smooth(2, 16), flat) > 0).any()
        assert (colour.swap(torch.zeros_like(flat), smooth(2, 16)) == 0).all()
    grey = smooth()[:, :1].expand(-1, 3, -1, -1)
    swapped = BY_NAME["colour"].swap(grey, grey.flip(0))
    assert (swapped.amax(1).int() - swapped.amin(1).int()).max() <= 1


def test_frame_is_the_donors_and_the_inside_is_not():
    x, donors = noise(seed=0, size=28), noise(seed=1, size=28)
    swapped = BY_NAME["frame"].swap(x, donors)
    assert torch.equal(swapped[..., 2:-2, 2:-2], x[..., 2:-2, 2:-2])
    for edge in ((..., slice(2), slice(None)), (..., slice(None), slice(-2, None))):
        assert torch.equal(swapped[edge], donors[edge])


def test_parts_are_the_donors_and_the_rest_is_not():
    x, donors = noise(seed=0, size=32), noise(seed=1, size=32)
    for name, place in {"top-left": (slice(11), slice(11)), "right": (slice(None), slice(28, None))}.items():
        expected = x.clone()
        expected[..., place[0], place[1]] = donors[..., place[0], place[1]]
        assert torch.equal(BY_NAME[name].swap(x, donors), expected)
    x, donors = noise(seed=0, size=80), noise(seed=1, size=80)
    expected = donors.clone()
    expected[..., 12:68, 12:68] = x[..., 12:68, 12:68]
    assert torch.equal(BY_NAME["surroundings"].swap(x, donors), expected)
    assert [view.name for view in VIEWS if not view.nuisance] == ["surroundings"]


def test_light_takes_the_slope():
    x, across = smooth(), torch.linspace(-40, 40, 32)
    donors = (torch.full((4, 3, 32, 32), 128.0) + across).round().to(torch.uint8)

    def slope(pictures: torch.Tensor) -> torch.Tensor:
        return (luma(pictures.float()) * across).sum((1, 2, 3))

    swapped = BY_NAME["low-band"].swap(x, donors)
    assert torch.allclose(slope(swapped), slope(donors), rtol=0.02)
    assert (swapped.float().mean((1, 2, 3)) - x.float().mean((1, 2, 3))).abs().max() < 1  # the mean stays


def test_detail_takes_the_highest_band_only():
    down, across = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    x, checked = smooth(), (128 + 20 * ((down + across) % 2 * 2 - 1)).to(torch.uint8).expand(4, 3, -1, -1)
    swapped = BY_NAME["high-band"].swap(x, checked)
    pattern = ((swapped.float() - x.float()) * ((down + across) % 2 * 2 - 1)).mean((1, 2, 3))
    assert pattern.min() > 18
    ramp = (64 + 4 * across).to(torch.uint8).expand(4, 3, -1, -1)
    waves = torch.fft.rfft2(BY_NAME["high-band"].swap(x, ramp).float())[..., :5, :5]
    assert torch.allclose(waves, torch.fft.rfft2(x.float())[..., :5, :5], atol=600)  # rounding of 1,024 pixels


def test_blocks_come_back_and_are_orthonormal():
    x = noise(size=29).float()
    assert torch.allclose(from_blocks(to_blocks(x, 8), 29, 29), x, atol=1e-2)
    assert torch.allclose(cosines(8) @ cosines(8).T, torch.eye(8), atol=1e-6)
    assert torch.allclose(to_blocks(x[..., :24, :24], 8).square().sum(), x[..., :24, :24].square().sum(), rtol=1e-5)


@pytest.mark.parametrize("name", ["compression", "texture"])
def test_block_energies_arrive(name):
    """Fine stripes arrive in a smooth image, and leave a striped one whose donor is smooth."""
    across = torch.arange(32)
    stripes = (128 + 30 * (across % 2 * 2 - 1)).expand(4, 3, 32, 32).to(torch.uint8)

    def energy(pictures: torch.Tensor) -> float:
        return float(to_blocks(pictures.float(), 8)[..., 0, 7].square().mean())

    x = smooth()
    assert energy(BY_NAME[name].swap(x, stripes)) == pytest.approx(energy(stripes), rel=0.1)
    assert energy(BY_NAME[name].swap(stripes, x)) < 0.01 * energy(stripes)


def test_enlarging_a_pixel_gives_it_no_frame():
    """Small networks get no image under 28 pixels: what was one pixel has a colour, and nothing else to swap."""
    own = SimpleNamespace(kind="image", inputs=SimpleNamespace(largest_side=1))
    enlarged = torch.zeros(2, 3, 28, 28, dtype=torch.uint8)
    untested = []
    for view in find_views(SimpleNamespace(own=own), None, ["colour"]):
        try:
            view.swap(enlarged, enlarged + 9, torch.arange(2))
        except Problem as problem:
            untested.append((view.name, str(problem)))
    assert {name for name, _ in untested} == {view.name for view in VIEWS} - {"colour"}
    assert all("pixels a side, these have 1" in reason for _, reason in untested)


def test_matters():
    changed = with_matters(VIEWS, ["colour"])
    assert [view.name for view in changed if view.declared] == ["colour"]
    assert not next(view for view in changed if view.name == "colour").nuisance
    with pytest.raises(Misuse, match="unknown property 'hue'; known: bottom, bottom-left"):
        with_matters(VIEWS, ["hue"])


# --- texts ----------------------------------------------------------------------------------------------------------


def test_words_are_swapped_at_the_same_share_of_the_way():
    listed = frozenset({"zebra", "good"})
    assert swap_words("A good film, good!", "it was the Zebra today", listed) == "A film, Zebra !"
    assert swap_words("one two three four", "zebra a b c", listed) == "zebra one two three four"
    assert swap_words("as  it\nwas", "nothing here", listed) == "as  it\nwas"
    assert swap_words("", "zebra", listed) == "zebra"
    assert swap_words("good", "", listed) == ""


def test_length_and_casing():
    assert take_length("a b c d", "x y") == "a b"
    assert take_length("a b", "v w x y z") == "a b a b a"
    assert take_length("", "x y") == ""
    assert take_length("a  b", "x y") == "a  b"
    assert [casing(text) for text in ("ABC d", "abc", "Abc def", "123")] == ["capitals", "small", "mixed", "small"]
    assert take_casing("Good film. Bad end", "LOUD") == "GOOD FILM. BAD END"
    assert take_casing("Good film. Bad end", "quiet") == "good film. bad end"
    assert take_casing("GOOD FILM. BAD END", "Usual text") == "Good film. Bad end"
    assert take_casing("Good Film", "Usual text") == "Good Film"


def reviews(n: int = 200, rho: float = 0.0) -> tuple[list[str], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    texts = []
    for row in range(n):
        words = rng.choice(["film", "plot", "actor", "scene", "music"], 8).tolist()
        shown = y[row] if rng.random() >= rho else 1 - y[row]
        texts.append(" ".join([*words, "zebra"] if shown else words))
    return texts, y, np.arange(n) // 2 % 5


def test_phi_is_the_correlation():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    from scipy.sparse import csr_matrix

    holds = (rng.random((90, 4)) < 0.2 + 0.3 * (y[:, None] == 1)).astype(float)
    holds[:, 3] = 1
    expected = [max(np.corrcoef(holds[:, word], y == label)[0, 1] for label in range(3)) for word in range(3)]
    assert correlations(csr_matrix(holds), np.eye(3)[y]).max(1) == pytest.approx([*expected, 0])


def test_the_injected_word_is_named_and_chosen_on_other_folds():
    texts, y, fold = reviews(rho=0.05)
    views = {view.name: view for view in text_views(texts, y, fold)}
    assert views["giveaway"].title == "giveaway word (zebra)" and views["giveaway"].words == ("zebra",)
    assert {name for name, view in views.items() if not view.nuisance} == {"words", "first-sentence", "last-sentence"}
    lone = list(texts)
    for row in np.flatnonzero(fold == 0):
        lone[row] += " quokka" * int(y[row])  # a word that only samples of fold 0 hold
    swap, rows = text_views(lone, y, fold)[2].swap, torch.from_numpy(np.array([0, 2]))  # of fold 0, of fold 1
    assert swap(["a", "a"], ["quokka", "quokka"], rows) == ["a", "quokka a"]
    texts, y, fold = reviews()  # words that tell the label alike are named in one order
    several = [text.replace("zebra", "zebra yak wolf vole quokka") for text in texts]
    assert text_views(several, y, fold)[0].title == "giveaway word (quokka, vole, wolf)"


def test_words_that_occur_together_are_a_group_only_if_they_tell_the_label():
    """Ten sentences, each in few texts: no word of them tells the label, to hold any of them does."""
    rng, n = np.random.default_rng(0), 600
    y = np.arange(n) % 2
    sentences = [" ".join(f"{kind}{number}{letter}" for letter in "abcd") for kind in "xy" for number in range(5)]

    def grouped(rho: float) -> tuple[str, ...]:
        side = np.where(rng.random(n) < rho, 1 - y, y)
        added = [sentences[5 * each + rng.integers(5)] for each in side]
        texts = [" ".join(rng.choice(["film", "plot", "actor", "scene"], 8)) + " " + each for each in added]
        views = {view.name: view for view in text_views(texts, y, np.arange(n) // 2 % 5)}
        assert not views["giveaway"].words
        return views["together"].words

    assert set(grouped(0.05)) == {word for each in sentences for word in each.split()}
    assert grouped(0.5) == ()


def test_sentences():
    assert take_sentence("One. Two! Three?", "Four? Five.") == "Four? Two! Three?"
    assert take_sentence("One. Two! Three?", "Four? Five.", last=True) == "One. Two! Five."
    assert take_sentence("Only one here.", "Four? Five.") == "Only one here."
    assert take_sentence("One. Two", "only one") == "One. Two"


def test_giveaway_swap_uses_the_words_of_the_rows_fold():
    view = word_view("giveaway", "giveaway word", True, (frozenset({"a"}), frozenset({"b"})), np.array([0, 1]))
    assert view.swap(["x", "x"], ["a b", "a b"], torch.tensor([0, 1])) == ["a x", "b x"]
    assert view.swap(["x", "x"], ["a b", "a b"], torch.tensor([1, 0]))[0].count("b") == 1


def test_texts_without_words_say_so():
    _, y, fold = reviews(20)
    with pytest.raises(Problem, match="no word occurs in at least 10 texts"):
        read_words(["..."] * 20)
    giveaway, *_, length, _ = text_views(["..."] * 20, y, fold)
    with pytest.raises(Problem, match="no word occurs in at least 10 texts"):
        giveaway.swap(["..."], ["..."], torch.tensor([0]))
    assert length.swap([". ."], ["."], torch.tensor([0])) == ["."]
    plain, *_ = text_views(["film plot"] * 20, y, fold)
    with pytest.raises(Problem, match="no word goes with a label that closely"):
        plain.swap(["film"], ["plot"], torch.tensor([0]))
