from pathlib import Path

import pytest

from edgepack.errors import ProfileError
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.profiles.reading import (
    describe_passes,
    list_profiles,
    load_profile,
    resolve_profile,
)


def _write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", list_profiles())
def test_every_shipped_profile_resolves_and_is_named_like_its_file(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.about.summary
    assert len(profile.sha256) == 64


def test_the_profiles_that_were_promised_are_shipped() -> None:
    promised = {"fp32", "cpu", "qnn-htp", "qnn-htp-a8w8", "openvino-cpu", "vitisai-xint8"}
    assert promised <= set(list_profiles())


@pytest.mark.parametrize("name", list_profiles())
def test_what_is_looked_at_before_a_refusal_is_shipped_and_for_the_same_provider(name: str) -> None:
    profile = load_profile(name)
    for other in profile.gates.alternatives:
        assert other != name
        assert load_profile(other).device.provider == profile.device.provider


def test_an_unknown_profile_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("qnn-http")
    assert "there is no profile 'qnn-http'" in str(caught.value)
    assert "try: --profile qnn-htp" in str(caught.value)


def test_an_unknown_key_is_refused_with_file_key_and_what_is_allowed(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        "mine.toml",
        '[profile]\nname = "mine"\nextends = "cpu"\n[gates]\nplacment_min = 1.0\n',
    )
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert "unknown key 'placment_min'" in message
    allowed = "accuracy, alternatives, float_instead, known_wrong_ops, placement_min"
    assert f"allowed here: {allowed}" in message
    assert f"{path}, gates.placment_min" in message
    assert "try: placement_min" in message


def test_an_unknown_key_of_a_pass_names_the_pass() -> None:
    with pytest.raises(ProfileError, match=r"unknown key 'activation'.*") as caught:
        resolve_profile("cpu", {"pass": [{"name": "quantize", "activation": "int8"}]})
    assert "cpu.toml, pass[quantize].activation" in str(caught.value)
    assert "try: activations" in str(caught.value)


def test_an_unknown_pass_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ProfileError) as caught:
        resolve_profile("cpu", {"pass": [{"name": "quantise"}]})
    assert "pass[quantise].name is 'quantise'; allowed are: apply_workarounds" in str(caught.value)
    assert "try: quantize" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "place", "problem"),
    [
        (
            {"limits": {"opset_min": "17"}},
            "limits.opset_min",
            "limits.opset_min must be a whole number, and is '17'",
        ),
        (
            {"gates": {"prefer": "sped"}},
            "gates.prefer",
            "gates.prefer is 'sped'; allowed are: speed, size, balanced, device",
        ),
        (
            {"pass": [{"name": "quantize", "activations": "int4"}]},
            "pass[quantize].activations",
            "pass[quantize].activations is 'int4'; allowed are: uint8, int8, uint16, int16",
        ),
        (
            {"pass": [{"name": "quantize", "ranges": "minmax"}]},
            "pass[quantize].ranges",
            "pass[quantize].ranges must be a list, and is 'minmax'",
        ),
        ({"gates": 3}, "gates", "gates must be a section, and is 3"),
        (
            {"gates": {"accuracy": {"classification": 0.98}}},
            "gates.accuracy.classification",
            "gates.accuracy.classification must be a section, and is 0.98",
        ),
        (
            {"gates": {"accuracy": {"classification": {"keep": 98}}}},
            "gates.accuracy.classification.keep",
            "gates.accuracy.classification.keep must be <= 1.0, and is 98",
        ),
        (
            {"gates": {"placement_min": 2.0}},
            "gates.placement_min",
            "gates.placement_min must be <= 1.0, and is 2.0",
        ),
        (
            {"pass": [{"name": "quantize", "max_float_share": float("nan")}]},
            "pass[quantize].max_float_share",
            "pass[quantize].max_float_share must be >= 0.0, and is nan",
        ),
        (
            {"source": "mine.toml"},
            "source",
            "unknown key 'source'; allowed here: "
            "compile, device, gates, limits, pass, profile, provider",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_place_and_what_may_stand_there(
    changes: dict[str, object], place: str, problem: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        resolve_profile("cpu", changes)
    assert caught.value.problem == problem
    assert "$" not in str(caught.value)
    assert caught.value.found_in is not None
    assert place in caught.value.found_in


def test_a_profile_without_what_its_pass_needs_is_refused_by_name(tmp_path: Path) -> None:
    text = '[profile]\nname = "a"\nsummary = "s"\nprecision = "a8w8"\n[[pass]]\nname = "quantize"\n'
    with pytest.raises(ProfileError, match=r"pass\[quantize\] lacks 'ops'"):
        load_profile(_write(tmp_path, "bare.toml", text))


def test_a_pass_that_stands_twice_in_one_file_is_refused(tmp_path: Path) -> None:
    text = '[profile]\nname = "a"\nextends = "cpu"\n'
    text += '[[pass]]\nname = "quantize"\nweights = "int8"\n'
    text += '[[pass]]\nname = "quantize"\nweights = "uint8"\n'
    with pytest.raises(ProfileError, match="the pass 'quantize' stands 2 times in one profile"):
        load_profile(_write(tmp_path, "twice.toml", text))


def test_a_name_that_no_folder_can_have_is_refused_before_anything_is_built(
    tmp_path: Path,
) -> None:
    text = '[profile]\nname = "../mine"\nextends = "cpu"\n'
    with pytest.raises(ProfileError, match=r"'\.\./mine' can be no variant's name"):
        load_profile(_write(tmp_path, "mine.toml", text))


def test_a_child_changes_settings_of_its_parents_passes_and_keeps_the_rest() -> None:
    parent, child = load_profile("qnn-htp").quantize, load_profile("qnn-htp-a8w8").quantize
    assert isinstance(parent, Quantize)
    assert isinstance(child, Quantize)
    assert (parent.activations, child.activations) == ("uint16", "uint8")
    assert child.per_channel == parent.per_channel


def test_a_child_that_changes_the_types_is_named_after_them() -> None:
    eight_bits = resolve_profile(
        "qnn-htp", {"pass": [{"name": "quantize", "activations": "uint8"}]}
    )
    assert load_profile("qnn-htp").about.precision == "a16w8"
    assert eight_bits.about.precision == "a8w8"
    power_of_two = resolve_profile("vitisai-xint8", {"profile": {"name": "mine"}})
    assert power_of_two.about.precision == "xint8"


def test_a_profile_may_extend_one_beside_it_by_path(tmp_path: Path) -> None:
    _write(tmp_path, "base.toml", '[profile]\nname = "base"\nextends = "cpu"\n')
    path = _write(
        tmp_path,
        "mine.toml",
        '[profile]\nname = "mine"\nextends = "base.toml"\n[limits]\nstatic_shapes = true\n',
    )
    profile = load_profile(path)
    assert profile.name == "mine"
    assert profile.limits.static_shapes
    assert profile.quantize == load_profile("cpu").quantize


def test_profiles_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, "a.toml", '[profile]\nname = "a"\nextends = "b.toml"\n')
    path = _write(tmp_path, "b.toml", '[profile]\nname = "b"\nextends = "a.toml"\n')
    with pytest.raises(ProfileError, match="a profile extends itself"):
        load_profile(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[profile", "is not valid TOML"),
        ("a = " + "[" * 5000 + "]" * 5000, "is not valid TOML"),
        ("[device]\n", r"has no section \[profile\]"),
        ("[profile]\nextends = 3\n", "`extends` must be a name"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        load_profile(_write(tmp_path, "broken.toml", text))


def test_a_profile_that_would_be_called_like_its_parent_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, "own.toml", '[profile]\nextends = "cpu"\n')
    with pytest.raises(ProfileError, match="has no name of its own") as caught:
        load_profile(path)
    assert caught.value.remedy == 'name = "mine"'


def test_a_parent_that_is_not_shipped_is_refused_with_one_that_is(tmp_path: Path) -> None:
    path = _write(tmp_path, "own.toml", '[profile]\nname = "a"\nextends = "cpuu"\n')
    with pytest.raises(ProfileError, match="there is no profile 'cpuu'") as caught:
        load_profile(path)
    assert (caught.value.remedy or "").startswith('extends = "cpu"')
    assert (caught.value.found_in or "").startswith(f"{path}; shipped profiles: coreml-fp16, cpu, ")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read the profile"):
        load_profile(str(tmp_path / "none.toml"))


def _quantize(**settings: object) -> dict[str, object]:
    return {"pass": [{"name": "quantize", **settings}]}


@pytest.mark.parametrize(
    ("base", "changes", "problem"),
    [
        ("cpu", _quantize(scales="power_of_two"), "power-of-two scales are one per tensor"),
        ("vitisai-xint8", _quantize(activation_symmetric=False), "need symmetric activations"),
        ("vitisai-xint8", _quantize(fixed_scales=True), "searched as powers of two"),
        ("qnn-htp", _quantize(qdq_domain="onnx"), "uint16 needs opset 21"),
        (
            "cpu",
            _quantize(high_precision_activations="int16", qdq_domain="onnx"),
            "int16 needs opset 21",
        ),
        (
            "vitisai-xint8",
            _quantize(backend="quark", high_precision_activations="int16"),
            "configurations have one type of activations",
        ),
        ("qnn-htp", {"limits": {"static_shapes": False}}, "static shapes only"),
        ("qnn-htp", {"compile": {"enabled": True}}, "needs a chip to compile for"),
        ("cpu", _quantize(ranges=["minmax", "percentile-120"]), "is not a calibration method"),
        ("cpu", _quantize(ranges=[]), "no calibration method is named"),
        ("qnn-htp", _quantize(output_ops=["Conv"]), "every output is quantized"),
        ("cpu", {"limits": {"opset_max": 16}}, "opset_min is above opset_max"),
        ("cpu", {"pass": [{"name": "clean", "opset": 22}]}, "outside 17…21"),
        ("cpu", {"provider": {"quantizes": True}}, "the provider quantizes by itself"),
    ],
)
def test_contradictory_settings_are_refused(
    base: str, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        resolve_profile(base, changes)
    message = str(caught.value)
    assert f"profile '{base}' contradicts itself" in message
    assert problem in message
    assert "try:" in message


def test_static_shapes_without_a_pass_that_fixes_them_are_refused(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        "mine.toml",
        '[profile]\nname = "mine"\nsummary = "s"\nprecision = "fp32"\n'
        '[device]\nprovider = "CPUExecutionProvider"\ntype = "cpu"\n'
        "[limits]\nstatic_shapes = true\n",
    )
    with pytest.raises(ProfileError, match="no pass fixes them"):
        load_profile(path)


def test_the_digest_is_of_the_settings_and_not_of_the_files_bytes(tmp_path: Path) -> None:
    plain = '[profile]\nname = "mine"\nextends = "cpu"\n'
    first = load_profile(_write(tmp_path, "a.toml", plain))
    second = load_profile(_write(tmp_path, "b.toml", f"# a comment\n{plain}"))
    third = load_profile(_write(tmp_path, "c.toml", f"{plain}[gates]\nplacement_min = 0.5\n"))
    assert first.sha256 == second.sha256
    assert first.sha256 != third.sha256


def test_the_recipe_reads_as_one_line_a_pass() -> None:
    lines = list(describe_passes(load_profile("cpu")))
    assert lines[0] == "clean: opset 17"
    assert lines[-1].startswith(
        "quantize: ops compute, raced_ops all, activations uint8, weights int8"
    )
