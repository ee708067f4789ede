"""Searched settings: read, checked before any work, and laid over the profile."""

import pytest

from edgepack.errors import BuildError
from edgepack.packager.search.combinations import combine, parse_searched, read_searched


def _combine(*texts: str, profiles: tuple[str, ...] = ("qnn-htp",)):  # type: ignore[no-untyped-def]
    return combine(profiles, map(parse_searched, texts))


def test_without_anything_searched_a_profile_is_tried_as_it_stands() -> None:
    ((only,),) = _combine()
    assert only.words == ""
    assert only.profile.name == "qnn-htp"


def test_each_value_gives_a_profile_with_it() -> None:
    ((first, second),) = _combine("quantize.activations=uint8,uint16")
    assert first.words == "quantize.activations = uint8"
    assert first.profile.quantize.activations == "uint8"
    assert first.profile.about.precision == "a8w8"
    assert second.profile.quantize.activations == "uint16"
    assert second.profile.about.precision == "a16w8"
    assert first.profile.sha256 != second.profile.sha256


def test_several_keys_are_combined() -> None:
    (entries,) = _combine("quantize.activations=uint8,uint16", "clean.opset=17,21")
    assert [entry.words for entry in entries] == [
        "quantize.activations = uint8, clean.opset = 17",
        "quantize.activations = uint8, clean.opset = 21",
        "quantize.activations = uint16, clean.opset = 17",
        "quantize.activations = uint16, clean.opset = 21",
    ]


def test_a_word_for_a_setting_that_takes_a_list_is_a_list_of_one() -> None:
    ((first, second),) = _combine("quantize.ranges=minmax,mse")
    assert first.profile.quantize.ranges == ("minmax",)
    assert second.profile.quantize.ranges == ("mse",)


def test_the_section_of_a_file_may_nest_keys_or_quote_them() -> None:
    nested = read_searched({"quantize": {"activations": ["uint8", "uint16"]}}, "edgepack.toml")
    quoted = read_searched({"quantize.activations": ["uint8", "uint16"]}, "edgepack.toml")
    assert list(nested) == list(quoted)


def test_a_key_that_one_of_two_profiles_has_is_searched_for_that_one() -> None:
    both = _combine("quantize.activations=uint8,uint16", profiles=("fp32", "qnn-htp"))
    assert [len(entries) for entries in both] == [1, 2]


def test_an_unknown_key_is_refused_with_those_that_can_be_searched() -> None:
    with pytest.raises(BuildError) as caught:
        _combine("quantize.activation=uint8")
    assert "'quantize.activation' cannot be searched" in caught.value.problem
    assert "quantize.ranges" in caught.value.problem
    assert caught.value.remedy == "quantize.activations"


def test_a_gate_cannot_be_searched() -> None:
    with pytest.raises(BuildError, match="cannot be searched"):
        _combine("gates.accuracy.classification.keep=0.5,0.9")


def test_a_value_that_cannot_be_is_refused_with_those_that_can() -> None:
    with pytest.raises(BuildError) as caught:
        _combine("quantize.activations=uint8,uint7")
    assert caught.value.problem == "quantize.activations cannot be uint7"
    assert "uint8" in str(caught.value.remedy)
    assert "int16" in str(caught.value.remedy)
    assert caught.value.found_in == "--search quantize.activations=uint8,uint7"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("quantize.ranges=minmax,7", "text"),
        ("quantize.reduce_range=true,maybe", "true, false"),
        ("quantize.max_float_share=0.5,all", "a number from 0 to 1"),
        ("quantize.max_float_share=0.1,1.5", "a number from 0 to 1"),
        ("quantize.backend_timeout_s=9.5,all", "a number"),
        ("clean.opset=17,new", "a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_may_stand_there(
    text: str, allowed: str
) -> None:
    with pytest.raises(BuildError) as caught:
        _combine(text)
    assert caught.value.problem.startswith(f"{text.partition('=')[0]} cannot be ")
    assert caught.value.remedy == f"allowed: {allowed}"


def test_options_of_the_provider_and_of_the_session_can_be_searched_by_any_name() -> None:
    (entries,) = _combine("provider.options.vtcm_mb=2,4")
    assert [entry.profile.provider.options["vtcm_mb"] for entry in entries] == ["2", "4"]
    assert entries[0].profile.provider.options["htp_performance_mode"] == "burst", "others stay"
    (entries,) = _combine("provider.session.session.disable_prepacking=0,1")
    said = [entry.profile.provider.session["session.disable_prepacking"] for entry in entries]
    assert said == ["0", "1"]


def test_an_option_that_the_provider_does_not_take_is_refused_in_the_profiles_words() -> None:
    with pytest.raises(BuildError) as caught:
        _combine("provider.options.htp_performance_mode=burst,fast")
    assert caught.value.problem.startswith(
        "provider.options.htp_performance_mode cannot be fast: profile 'qnn-htp' has unused "
        "settings: htp_performance_mode is 'fast'; allowed are: burst, balanced"
    )
    assert (caught.value.remedy or "").startswith("one of these, or unchecked = [")


def test_a_combination_that_contradicts_itself_is_refused_by_name() -> None:
    with pytest.raises(BuildError) as caught:
        _combine("quantize.scales=float,power_of_two")
    assert "the combination quantize.scales = power_of_two cannot be" in caught.value.problem


def test_too_many_combinations_are_refused_with_their_number() -> None:
    shares = ",".join(f"0.{number:02}" for number in range(65))
    with pytest.raises(BuildError, match="65 combinations are more than a search can try"):
        _combine(f"quantize.max_float_share={shares}")


@pytest.mark.parametrize("text", ["quantize.activations", "=uint8", "quantize.activations="])
def test_a_search_without_key_or_values_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="names no setting with values to try"):
        parse_searched(text)


def test_a_setting_without_a_value_to_try_is_refused() -> None:
    with pytest.raises(BuildError) as caught:
        combine(("qnn-htp",), read_searched({"quantize.activations": []}, "edgepack.toml"))
    assert caught.value.problem == "'quantize.activations' names no value to try"
    assert caught.value.found_in == "edgepack.toml, [search] quantize.activations"


def test_what_is_preferred_lies_over_every_profile_and_combination() -> None:
    searched = (parse_searched("quantize.activations=uint8,uint16"),)
    entries, (alone,) = combine(("qnn-htp", "fp32"), searched, {"gates": {"prefer": "size"}})
    assert [entry.profile.gates.prefer for entry in (*entries, alone)] == ["size"] * 3
    assert len(entries) == 2
