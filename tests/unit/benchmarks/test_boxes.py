"""Boxes from a text detector's map, and matches with the drawn boxes."""

import numpy as np

from benchmarks.tasks.boxes import Box, count_matches, find_boxes


def test_each_group_of_likely_pixels_is_one_box_wider_than_it() -> None:
    probabilities = np.zeros((40, 100), np.float32)
    probabilities[10:14, 20:60] = 0.9
    probabilities[14, 60] = 0.9  # touches by a corner
    probabilities[30:32, 5:25] = 0.4  # likely pixels, unlikely box
    (box,) = find_boxes(probabilities)
    by = 41 * 5 * 1.6 / (2 * (41 + 5))
    np.testing.assert_allclose(box, (20 - by, 10 - by, 61 + by, 15 + by))


def test_an_empty_map_has_no_boxes() -> None:
    assert find_boxes(np.zeros((4, 4), np.float32)) == []


def test_a_box_is_found_once_and_only_by_one_that_covers_half_of_both() -> None:
    drawn = [Box(0, 0, 10, 10), Box(20, 0, 30, 10)]
    assert count_matches([Box(0, 0, 10, 9), Box(0, 1, 10, 10)], drawn) == 1
    assert count_matches([Box(0, 0, 10, 4)], drawn) == 0
    assert count_matches([Box(21, 0, 30, 10), Box(0, 0, 9, 10)], drawn) == 2
    assert count_matches([], drawn) == 0
