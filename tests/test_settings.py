"""Settings: read from signatures, converted by annotations, components by kind; errors name the path and the fix."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagenet import settings
from messagenet.errors import InputError
from messagenet.graph import Relation, surrounding
from messagenet.settings import (
    Component,
    Option,
    at_least,
    between,
    build,
    component,
    component_group,
    convert,
    find,
    flat,
    help_texts,
    import_components,
    kinds,
    merge,
    nested,
    options,
    plain,
    register,
)


class Base:
    """What all have.

    Args:
        size: How large, in pixels;
            continued here.
        name: What it is called.
        depth, width: Two of them.
    """

    def __init__(self, given: int, *, size: int = 3, name: str = "base", depth: int = 1, width: int = 2) -> None:
        self.given, self.size, self.name = given, size, name
        self.depth, self.width = depth, width


class Derived(Base):
    """One of them.

    Args:
        name: Another meaning.
        extra: Its own.
    """

    def __init__(self, given: int, *, extra: float = 0.5, name: str = "derived", **options: Any) -> None:
        super().__init__(given, name=name, **options)
        self.extra = extra


class Plain(Base):
    """The same settings, the same constructor."""


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A group of its own, which no other test sees."""
    entries: dict[str, Any] = {}
    monkeypatch.setitem(settings._REGISTRY, "thing", entries)
    for kind, make in (("base", Base), ("derived", Derived), ("plain", Plain)):
        register("thing", kind)(type(make.__name__, (make,), {"__doc__": make.__doc__}))
    return entries


# Options.


class TestOptions:
    def test_of_a_function(self):
        def resize(image, size: int = 384, *, antialias: bool = True, mode="bilinear"):
            """Resizes.

            Args:
                image: Not a setting.
                size: Pixels of the longest side.
            """

        assert options(resize) == {
            "size": Option("size", int, 384, "Pixels of the longest side."),
            "antialias": Option("antialias", bool, True, ""),
            "mode": Option("mode", Any, "bilinear", ""),
        }

    def test_of_a_class(self):
        found = options(Base)
        assert list(found) == ["size", "name", "depth", "width"]
        assert found["size"] == Option("size", int, 3, "How large, in pixels; continued here.")
        assert found["depth"].help == found["width"].help == "Two of them."

    def test_options_stand_for_those_of_the_base_class(self):
        found = options(Derived)
        assert set(found) == {"size", "name", "depth", "width", "extra"}
        assert found["size"] == options(Base)["size"]
        assert found["name"] == Option("name", str, "derived", "Another meaning.")
        assert found["extra"] == Option("extra", float, 0.5, "Its own.")

    def test_a_constructor_that_is_inherited_has_its_settings(self):
        assert options(Plain) == options(Base)

    def test_of_a_dataclass(self):
        @dataclass
        class Section:
            """A section.

            Attributes:
                rate: How fast.
            """

            given: int
            rate: float = 0.1
            names: list[str] = field(default_factory=lambda: ["a"])
            shared: ClassVar[int] = 3

        assert options(Section)["rate"] == Option("rate", float, 0.1, "How fast.")
        assert options(Section)["names"].default == ["a"]
        assert set(options(Section)) == {"rate", "names"}

    def test_help_of_a_derived_class_comes_first(self):
        assert help_texts(Derived)["name"] == "Another meaning."
        assert help_texts(Derived)["size"] == "How large, in pixels; continued here."
        assert help_texts(lambda: None) == {}

    @pytest.mark.parametrize("group", ["backbone", "neck", "head", "loss"])
    def test_every_setting_is_explained_and_typed(self, group):
        import messagenet.losses  # noqa: F401

        assert kinds(group)
        for kind in kinds(group):
            for name, option in options(find(group, kind)).items():
                assert option.help, f"{group} {kind}: {name} has no line under Args"
                assert option.type is not Any, f"{group} {kind}: {name} has no annotation"
                convert(plain(option.default), option.type, name)
                json.dumps(plain(option.default))


# Registries.


class TestRegistry:
    def test_kinds_are_in_the_order_of_registration(self, registry):
        assert kinds("thing") == ("base", "derived", "plain")
        assert find("thing", "base") is registry["base"]

    def test_an_unknown_kind_names_the_nearest(self):
        with pytest.raises(InputError, match='there is no thing "bse": did you mean "base"'):
            find("thing", "bse")
        with pytest.raises(InputError, match=r"\(model\.thing\)$"):
            find("thing", "bse", "model.thing")

    def test_an_unknown_group_names_the_nearest(self):
        with pytest.raises(InputError, match='there is no group "heads" of components: did you mean "head"'):
            register("heads", "mine")

    def test_a_kind_is_registered_once(self, registry):
        def define() -> type:
            @register("thing", "mine")
            class Mine:
                pass

            return Mine

        define()
        again = define()  # as a cell of a notebook that is run twice
        assert find("thing", "mine") is again
        with pytest.raises(InputError, match=r'the thing "mine" is .*Mine; register .*Base as another kind'):
            register("thing", "mine")(Base)
        assert find("thing", "mine") is again

    @pytest.mark.parametrize(("group", "kind"), [("backbone", "tiny"), ("loss", "likelihood"), ("engine", "bp")])
    def test_a_kind_of_the_library_is_taken_before_it_is_loaded(self, group, kind):
        lines = ["import messagenet as mn", "def mine(): ...", f"mn.register('{group}', '{kind}')(mine)"]
        done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
        said = rf'InputError: the {group} "{kind}" is messagenet\..*; register __main__\.mine as another kind$'
        assert re.search(said, done.stderr.splitlines()[-1])

    def test_numbers_of_numpy_are_recorded_as_plain_ones(self, registry):
        made = registry["base"](1, size=np.int64(5), width=np.float32(0.5))
        assert json.loads(json.dumps(made.config))["size"] == 5
        assert component("thing", {"kind": "base", "size": np.int64(5)})["size"] == 5

    def test_instances_know_what_builds_them_again(self, registry):
        made = registry["derived"](1, extra=2, size=5)
        assert made.config == {"kind": "derived", "size": 5, "name": "derived", "depth": 1, "width": 2, "extra": 2}
        again = build("thing", made.config, given=1)
        assert again.config == made.config
        assert vars(again) == vars(made)
        assert registry["base"](1).config == {"kind": "base", "size": 3, "name": "base", "depth": 1, "width": 2}

    def test_a_subclass_that_is_not_registered_has_no_configuration(self, registry):
        class Mine(registry["base"]):
            pass

        assert not hasattr(Mine(1), "config")

    def test_a_registered_subclass_of_a_registered_class_has_its_own(self, registry):
        @register("thing", "mine")
        class Mine(registry["derived"]):
            def __init__(self, given, *, colour: str = "red", **options):
                super().__init__(given, **options)

        made = Mine(1, colour="blue", size=4)
        assert made.config["kind"] == "mine"
        assert (made.config["colour"], made.config["size"], made.config["extra"]) == ("blue", 4, 0.5)

    def test_functions_are_components_too(self):
        @register("thing", "made")
        def make(given: int, *, factor: int = 2) -> Base:
            return Base(given * factor)

        assert build("thing", {"kind": "made", "factor": 3}, given=2).given == 6
        assert build("thing", "made", given=2).config == {"kind": "made", "factor": 2}

    def test_values_that_the_program_gives_and_nobody_asks_for_are_left_out(self):
        assert build("thing", "base", given=4, unknown=5).given == 4

    def test_errors_of_a_constructor_name_the_path(self):
        @register("thing", "fussy")
        class Fussy:
            def __init__(self, *, size: int = 3) -> None:
                at_least(1, size=size)

        with pytest.raises(InputError, match=r"^model: size is 0; give at least 1$"):
            build("thing", {"kind": "fussy", "size": 0}, path="model")


# Modules that register components.


class TestImport:
    def test_a_file_and_a_module(self, tmp_path, monkeypatch):
        monkeypatch.setattr("sys.path", list(sys.path))
        monkeypatch.chdir(tmp_path)
        for name in ("one_component", "other_component"):
            text = f"from messagenet.settings import register\n@register('thing', '{name}')\ndef make(): ...\n"
            (tmp_path / f"{name}.py").write_text(text)
        import_components(str(tmp_path / "one_component.py"))
        import_components("other_component")
        assert kinds("thing")[-2:] == ("one_component", "other_component")
        import_components("one_component.py")  # once more

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("nothing.py", "there is no file nothing.py to import; check the path"),
            ("no.module", r"no.module cannot be imported \(ModuleNotFoundError: No module named 'no'\); correct it"),
            ("failing.py", r"failing.py cannot be imported \(ZeroDivisionError: division by zero\)"),
            ("json.py", 'another module is called "json"; rename json.py'),
        ],
    )
    def test_what_cannot_be_imported_is_one_line(self, source, words, tmp_path, monkeypatch):
        monkeypatch.setattr("sys.path", list(sys.path))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "failing.py").write_text("1 / 0\n")
        (tmp_path / "json.py").write_text("")
        with pytest.raises(InputError, match=f"^{words}") as caught:
            import_components(source)
        assert "\n" not in str(caught.value)


# Components.


class TestComponent:
    def test_a_kind_alone_means_its_defaults(self):
        assert component("thing", "base") == {"kind": "base", "size": 3, "name": "base", "depth": 1, "width": 2}

    def test_settings_change_the_component_before(self):
        before = component("thing", {"kind": "base", "size": 7})
        assert component("thing", {"name": "x"}, before) == {**before, "name": "x"}
        assert component("thing", {}, before) == before
        assert component("thing", {"kind": "base"}, before) == before

    def test_options_that_were_set_keep_their_value_when_the_kind_changes(self):
        before = component("thing", {"kind": "derived", "size": 7, "extra": 0.1})
        assert component("thing", "base", before) == {"kind": "base", "size": 7, "name": "base", "depth": 1, "width": 2}
        named = component("thing", {"name": "mine"}, before)
        assert component("thing", "base", named)["name"] == "mine"
        back = component("thing", {"kind": "derived", "depth": 4}, component("thing", "base", before))
        assert back["extra"] == 0.5
        assert (back["size"], back["depth"]) == (7, 4)

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"kind": "base", "siz": 3}, 'there is no setting "model.thing.siz" for base: did you mean "size"'),
            ({"kind": "base", "extra": 3}, 'there is no setting "model.thing.extra" for base'),
            ({"kind": "base", "size": "big"}, "model.thing.size is 'big'; give a whole number"),
            ({"kind": "bases"}, 'there is no thing "bases": did you mean "base"'),
            ({"size": 3}, "model.thing has no kind"),
            (3, "model.thing is 3; give a kind, or settings as {kind: …, name: value}"),
            (["base"], "model.thing is"),
            (None, "model.thing is None; give a kind"),
        ],
    )
    def test_what_is_wrong_is_named_by_its_path(self, spec, words):
        with pytest.raises(InputError) as caught:
            component("thing", spec, path="model.thing")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_values_are_plain(self):
        import messagenet.models  # noqa: F401

        spec = component("head", {"kind": "message", "relations": [surrounding(0.4)]})
        assert spec["relations"] == ["surrounding:0.4"]
        assert component("head", json.loads(json.dumps(spec))) == spec

    def test_the_only_kind_of_a_group_need_not_be_named(self, monkeypatch, registry):
        monkeypatch.setitem(settings._REGISTRY, "single", {"base": registry["base"]})
        assert component("single", {"size": 4}) == component("single", {"kind": "base", "size": 4})


# Merging.


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    steps: int | None = None
    epochs: int | None = 3

    def adapt(self, values: Mapping[str, Any]) -> Inner:
        """One of them is None."""
        return replace(self, steps=None, epochs=None) if {"steps", "epochs"} & values.keys() else self


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    thing: Annotated[dict[str, Any], Component("thing")] = field(default_factory=lambda: component("thing", "base"))
    neck: Annotated[dict[str, Any] | None, Component("thing")] = None
    sizes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        between(0, 6, sizes=len(self.sizes))


class TestMerge:
    def test_sections_and_components_keep_what_is_not_given(self):
        merged = merge(Outer(), {"inner": {"rate": 1}, "thing": {"size": 9}, "sizes": [4]})
        assert merged.inner == Inner(rate=1.0)
        assert merged.thing == component("thing", {"kind": "base", "size": 9})
        assert merged.sizes == (4,)
        assert merge(merged, {"thing": "derived"}).thing["size"] == 9
        assert merge(merged, {"thing": {"kind": "derived", "extra": 2}}).thing["extra"] == 2.0
        assert merge(Outer(), {"inner": None}) == Outer()

    def test_an_optional_component_comes_and_goes(self):
        with_neck = merge(Outer(), {"neck": {"kind": "plain", "size": 5}})
        assert with_neck.neck["size"] == 5
        assert merge(with_neck, {"neck": None}).neck is None
        with pytest.raises(InputError, match="neck has no kind"):
            merge(Outer(), {"neck": {"size": 5}})

    def test_a_class_says_what_else_changes(self):
        assert merge(Inner(), {"steps": 7}) == Inner(steps=7, epochs=None)
        assert merge(Inner(steps=7, epochs=None), {"epochs": 2}) == Inner(steps=None, epochs=2)
        assert merge(Inner(), {"steps": 7, "epochs": 2}) == Inner(steps=7, epochs=2)

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"iner": {}}, 'there is no setting "iner": did you mean "inner"'),
            ({"inner": {"rat": 1}}, 'there is no setting "inner.rat": did you mean "inner.rate"'),
            ({"rate": 1}, 'there is no setting "rate": did you mean "inner.rate"'),
            ({"extra": 1}, 'there is no setting "extra": did you mean "neck.extra", of the neck derived?'),
            ({"size": 1}, 'there is no setting "size": did you mean "thing.size"'),
            ({"inner": 3}, "inner is 3; give settings as name: value"),
            (3, "the configuration is 3; give settings as name: value"),
            ({"thing": {"kind": ["base"]}}, "the kind of thing is ['base']; give one text; choose one of: base"),
            ({"thing": {1: 2}}, 'there is no setting "thing.1" for base: choose one of'),
            ({1: 2}, 'there is no setting "1": choose one of'),
            ({"inner": {"steps": 1.5}}, "inner.steps is 1.5; give a whole number or null"),
            ({"thing": {"siz": 1}}, 'there is no setting "thing.siz" for base: did you mean "size"'),
            ({"sizes": [1] * 6}, "sizes is 6; give a number from 0 to below 6"),
        ],
    )
    def test_what_is_wrong_is_named_by_its_path(self, values, words):
        with pytest.raises(InputError) as caught:
            merge(Outer(), values)
        assert words in str(caught.value)

    def test_flat_and_plain_write_everything(self):
        outer = Outer()
        assert flat(outer)["inner.rate"] == 0.1
        assert flat(outer)["thing.kind"] == "base"
        assert flat(outer)["sizes"] == [1, 2]
        assert flat(outer)["neck"] is None
        assert merge(Outer(inner=Inner(0.7), sizes=()), plain(outer)) == outer
        assert json.loads(json.dumps(plain(outer))) == plain(outer)

    def test_settings_by_path_become_sections(self):
        assert nested({"thing": "derived", "thing.size": 4, "inner.rate": 2}) == {
            "thing": {"kind": "derived", "size": 4},
            "inner": {"rate": 2},
        }
        assert nested({"a.b": 1, "a": 2}) == {"a": 2}
        assert nested({"a.b.c": 1, "a": {"b": {"d": 2}}}) == {"a": {"b": {"c": 1, "d": 2}}}
        assert nested({"a.b.c": 1, "a": {"b": "kind"}}) == {"a": {"b": {"c": 1, "kind": "kind"}}}
        merged = merge(Outer(), nested({"thing.kind": "derived", "thing.extra": 1, "inner.steps": 3}))
        assert merged.thing == component("thing", {"kind": "derived", "extra": 1.0})
        assert merged.inner.epochs is None
        with pytest.raises(InputError, match=r'"a\.b" goes into a, which another setting has replaced by 3'):
            nested({"a": 3, "a.b": 1})

    def test_component_groups_are_read_from_annotations(self):
        assert component_group(options(Outer)["thing"].type) == "thing"
        assert component_group(options(Outer)["sizes"].type) is None
        assert component_group(int) is None


# Converting.

GOOD = [
    (3, int, 3),
    (3, float, 3.0),
    ("1e-3", float, 1e-3),
    (True, bool, True),
    ("text", str, "text"),
    (None, int | None, None),
    (3, int | None, 3),
    (None, type(None), None),
    ("a", Literal["a", "b"], "a"),
    (2, Literal[1, 2], 2),
    ([1, 2], tuple[int, ...], (1, 2)),
    ((), tuple[int, ...], ()),
    ([1, 2.5], tuple[float, float], (1.0, 2.5)),
    ([[1, 2], [3, 4]], tuple[tuple[int, int], ...], ((1, 2), (3, 4))),
    ([1], list[int], (1,)),
    ([1, 2], Sequence[int], (1, 2)),
    ({"a": 1}, dict[str, float], {"a": 1.0}),
    ({"a": 1}, Mapping[str, int], {"a": 1}),
    (object, Any, object),
    (3, Annotated[int, Component("x")], 3),
    ("surrounding:0.4", Relation, surrounding(0.4)),
    (surrounding(0.4), Relation, surrounding(0.4)),
    (["surrounding:0.4"], Sequence[Relation], (surrounding(0.4),)),
    ([1, "a"], tuple[int | Literal["a"], ...], (1, "a")),
    (np.int64(3), int, 3),
    (np.int64(3), float, 3.0),
    (np.float32(0.5), float | None, 0.5),
    (np.int64(2), Literal[1, 2], 2),
    (np.bool_(True), bool, True),
    ([np.int8(1), 2], tuple[int, ...], (1, 2)),
    (np.float32(0.5), Any, 0.5),
]
BAD = [
    (3.0, int, "give a whole number"),
    (True, int, "give a whole number"),
    ("3", int, "give a whole number"),
    (True, float, "give a number"),
    ("many", float, "give a number"),
    (None, float, "give a number"),
    (1, bool, "give true or false"),
    ("yes", bool, "give true or false"),
    (3, str, "give text"),
    (3.5, int | None, "give a whole number or null"),
    ("adam", Literal["sgd", "adamw"], 'did you mean "adamw"?'),
    (True, Literal[1, 2], "give 1 or 2"),
    (7, Literal["sgd", "adamw"], 'give "sgd" or "adamw"'),
    ("bfloat16", Literal["float32", "bf16", "fp16"], 'give "float32" or "bf16" or "fp16"'),
    (np.float32(1.5), int, "give a whole number"),
    ("zzzzzzz", Literal["sgd", "adamw"] | None, 'give "sgd" or "adamw" or null'),
    ("12", tuple[int, ...], "give a list, each a whole number"),
    (1, tuple[int, ...], "give a list, each a whole number"),
    ([1, "a"], Sequence[float], "give a list, each a number"),
    ([1, 2, 3], tuple[float, float], "give a list of 2, each a number"),
    ({1: 2}, dict[str, int], "give settings as {name: value}"),
    ([1], dict[str, int], "give settings as {name: value}"),
]


class TestConvert:
    @pytest.mark.parametrize(("value", "hint", "expected"), GOOD)
    def test_what_fits(self, value, hint, expected):
        found = convert(value, hint, "x")
        assert found == expected
        assert type(found) is type(expected)

    @pytest.mark.parametrize(("value", "hint", "advice"), BAD)
    def test_what_does_not_fit_is_told_what_would(self, value, hint, advice):
        with pytest.raises(InputError) as caught:
            convert(value, hint, "model.x")
        assert str(caught.value) == f"model.x is {value!r}; {advice}"

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        )
    )
    def test_any_value_fits_or_is_refused_in_one_line(self, value):
        for _, hint, _ in GOOD:
            try:
                convert(value, hint, "x")
            except InputError as error:
                assert "\n" not in str(error)  # noqa: PT017 (either is right)

    def test_classes_that_read_their_own_settings_refuse_by_path(self):
        for value, words in (
            ("abve:0.4", r'^model\.x: relation "abve:0\.4" has the shape "abve": did you mean "above"'),
            (3, r"^model\.x: relation 3 is neither a word nor settings; write it as surrounding:0\.4"),
            ({"name": "a"}, r"^model\.x: "),
        ):
            for hint in (Relation, Relation | None, Relation | str):
                with pytest.raises(InputError, match=words):
                    convert(value, hint, "model.x")
        assert convert(None, Relation | None, "x") is None
        assert convert(4, Relation | int, "x") == 4

    def test_bounds_name_the_setting(self):
        at_least(1, a=1)
        between(0, 1, a=0)
        for call, words in (
            (lambda: at_least(1, size=0), "size is 0; give at least 1"),
            (lambda: between(0, 1, size=1), "size is 1; give a number from 0 to below 1"),
        ):
            with pytest.raises(InputError, match=words):
                call()


def test_registered_classes_can_be_sent():
    import messagenet.models

    head = messagenet.models.UnaryHead(4, 3, hidden=5)
    again = pickle.loads(pickle.dumps(head))
    assert again.config == head.config == {"kind": "unary", "hidden": 5}


def test_a_later_kind_keeps_options_that_were_set_before():
    either = ({"model.head.hidden": 8, "model.head": "unary"}, {"model.head": "unary", "model.head.hidden": 8})
    assert [nested(values) for values in either] == [{"model": {"head": {"kind": "unary", "hidden": 8}}}] * 2


def test_a_bound_refuses_what_is_not_a_number():
    with pytest.raises(InputError, match="lr is nan; give at least 0"):
        at_least(0, lr=float("nan"))
