"""The texts of options: read exactly, or refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.cli.main import cli
from ogc_plan.cli.options import parse_dims, parse_duration, parse_inputs
from ogc_plan.planner.errors import UsageError


class TestOptionTexts:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("30s", 30),
            ("30", 30),
            ("2m", 120),
            ("500ms", 0.5),
            ("1h", 3600),
            (" .5S", 0.5),
        ],
    )
    def test_times(self, text: str, seconds: float) -> None:
        assert parse_duration(text) == pytest.approx(seconds)

    @pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1e3", "0", "0ms", "nan", "inf", "1s1s", "٣s"])
    def test_what_is_no_time(self, text: str) -> None:
        with pytest.raises(UsageError) as refused:
            parse_duration(text)
        assert refused.value.message.startswith("--time-limit ")

    def test_dims_may_contain_equal_signs(self) -> None:
        assert parse_dims(("a=b=3", "seq=512")) == {"a=b": 3, "seq": 512}

    @pytest.mark.parametrize("text", ["", "=", "=3", "a=", "a=-1", "a=1.5", "a=٣", "a=1e3", "a=" + "9" * 30])
    def test_what_is_no_dim(self, text: str) -> None:
        with pytest.raises(UsageError) as refused:
            parse_dims((text,))
        assert refused.value.message.startswith("--dim ")

    def test_shapes(self) -> None:
        assert parse_inputs(("a/b:0=64x3x224x224", "c=8,16", "d=7")) == {
            "a/b:0": (64, 3, 224, 224),
            "c": (8, 16),
            "d": (7,),
        }

    @pytest.mark.parametrize("text", ["x", "x=", "x=3x", "x=x3", "x=3xx4", "x=-3", "x=0", "x=3x0", "x=(3,4)"])
    def test_what_is_no_shape(self, text: str) -> None:
        with pytest.raises(UsageError) as refused:
            parse_inputs((text,))
        assert refused.value.message.startswith("--shape ")

    @pytest.mark.parametrize("read", [lambda t: parse_dims((t,)), lambda t: parse_inputs((t,)), parse_duration])
    @given(text=st.text(max_size=30))
    def test_any_text_is_read_or_refused(self, read: Callable[[str], Any], text: str) -> None:
        with contextlib.suppress(UsageError):
            assert read(text)

    def test_every_option_of_every_command_has_a_help_text(self) -> None:
        silent = [
            (name, parameter.name)
            for name, command in cli.commands.items()
            for parameter in command.params
            if isinstance(parameter, click.Option) and not parameter.help
        ]
        assert silent == []
