"""What a profile tells its provider and its session is what these document."""

from importlib import resources
from pathlib import Path

import pytest

from edgepack.errors import ProfileError
from edgepack.packager.profiles.reading import list_profiles, load_profile, resolve_profile


@pytest.mark.parametrize("name", list_profiles())
def test_shipped_profiles_say_only_what_is_documented(name: str) -> None:
    assert load_profile(name).name == name


def test_every_shipped_provider_has_a_list() -> None:
    folder = resources.files("edgepack.profiles") / "options"
    for name in list_profiles():
        assert (folder / f"{load_profile(name).device.provider}.toml").is_file()


@pytest.mark.parametrize(
    ("provider", "problem", "place"),
    [
        (
            {"options": {"htp_arch": "999"}},
            "htp_arch is '999'; allowed are: 0, 68, 69, 73, 75, 79, 81",
            "provider.options.htp_arch",
        ),
        (
            {"options": {"vtcm_mb": "-3"}},
            "vtcm_mb is '-3'; allowed is a whole number from 0 on",
            "provider.options.vtcm_mb",
        ),
        (
            {"options": {"htp_performance_mode": "warp"}},
            "htp_performance_mode is 'warp'; allowed are: burst, balanced, default",
            "provider.options.htp_performance_mode",
        ),
        (
            {"options": {"offload_graph_io_quantization": "true"}},
            "offload_graph_io_quantization is 'true'; allowed are: 0, 1",
            "provider.options.offload_graph_io_quantization",
        ),
        (
            {"session": {"session.disable_cpu_fallback": "1"}},
            "a session knows no option 'session.disable_cpu_fallback'",
            'provider.session."session.disable_cpu_fallback"',
        ),
        (
            {"session": {"session.graph_optimization_level": "most"}},
            "session.graph_optimization_level is 'most'; allowed are: disable_all, basic",
            'provider.session."session.graph_optimization_level"',
        ),
    ],
)
def test_what_nobody_reads_is_refused_with_what_is_allowed(
    provider: dict[str, object], problem: str, place: str
) -> None:
    with pytest.raises(ProfileError) as refused:
        resolve_profile("qnn-htp", {"provider": provider})
    assert problem in refused.value.problem
    assert refused.value.found_in == f"qnn-htp.toml, {place}"
    assert "unchecked = [" in str(refused.value.remedy)


def test_a_mistyped_option_is_told_the_nearest() -> None:
    with pytest.raises(ProfileError) as refused:
        resolve_profile("qnn-htp", {"provider": {"options": {"htp_performence_mode": "burst"}}})
    assert str(refused.value.remedy).startswith("htp_performance_mode, or unchecked = [")


def test_a_name_with_dots_is_proposed_in_quotes() -> None:
    with pytest.raises(ProfileError) as refused:
        resolve_profile(
            "qnn-htp", {"provider": {"session": {"session.disable_cpu_ep_falback": "1"}}}
        )
    assert str(refused.value.remedy).startswith('"session.disable_cpu_ep_fallback", or unchecked')


def test_options_for_compiling_are_looked_at_too() -> None:
    with pytest.raises(ProfileError, match="knows no option 'warp'"):
        resolve_profile("qnn-htp-v73", {"compile": {"options": {"warp": "9"}}})


def test_what_is_newer_than_the_list_is_passed_on_by_name() -> None:
    profile = resolve_profile(
        "qnn-htp",
        {
            "provider": {
                "options": {"htp_arch": "99", "htp_next": "1"},
                "session": {"session.next": "1"},
                "unchecked": ["htp_arch", "htp_next", "session.next"],
            }
        },
    )
    assert profile.provider.options["htp_next"] == "1"


def test_an_unchecked_name_that_no_option_has_is_refused() -> None:
    with pytest.raises(ProfileError, match="'htp_arhc' is to stay unchecked, and no option"):
        resolve_profile("qnn-htp", {"provider": {"unchecked": ["htp_arhc"]}})


def test_a_provider_that_edgepack_does_not_know_is_told_what_the_profile_says(
    tmp_path: Path,
) -> None:
    path = tmp_path / "npu.toml"
    path.write_text(
        '[profile]\nname = "npu"\nextends = "fp32"\n[device]\nprovider = "NewExecutionProvider"\n'
        '[provider.options]\nspeed = "9"\n',
        encoding="utf-8",
    )
    assert load_profile(str(path)).provider.options == {"speed": "9"}
