"""The documents are true: their Python runs, their commands, settings and files exist, their words are the field's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import messagenet as mn

ROOT = Path(__file__).resolve().parents[1]
PYTHON = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/python.md", "docs/examples.md")]
DOCUMENTS = sorted({*PYTHON, ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md")})
PROGRAMS = "Three programs"
MAX_PROGRAM_LINES = 12
MAX_COMPONENT_LINES = 15

WORDS = r"told|heard|talking|silenced|loudness|judged|settled|in\W+the\W+box|unless\W+told|pictures?|truth"
ALLOWED = (
    "make pictures",  # the target of the Makefile that takes the screenshots
    "<picture",  # HTML's element for images
    "ground truth",  # the field's word for measured labels
)


def document_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str = "python", section: str = "") -> list[str]:
    text = path.read_text(encoding="utf-8")
    if section:
        text = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def lines_of_code(block: str) -> int:
    return sum(bool(line.strip()) for line in block.splitlines())


def run_blocks(path: Path) -> dict[str, Any]:
    """Runs all Python of a document, block after block, in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(path):
        exec(compile(block, document_id(path), "exec", dont_inherit=True), names)
    return names


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_runs_and_means_what_it_says(empty_folder):
    from PIL import Image

    Image.fromarray(mn.open_data("synthetic:1")[0].image).save("photo.jpg")
    names = run_blocks(ROOT / "README.md")
    assert names["logits"].shape == (2, 21, 32, 48)
    received = mn.received_messages(names["head"], names["features"], node=(10, 17))
    total = sum(message.values for message in received)
    torch.testing.assert_close(total, names["logits"][0, :, 10, 17], rtol=1e-3, atol=1e-3)
    assert names["labels"].shape == mn.read_image("photo.jpg").shape[:2]
    assert names["tags"].shape == (4, 5)
    unary = names["potentials"][0]
    torch.testing.assert_close(unary.grad, names["result"].marginals.detach(), rtol=1e-3, atol=1e-3)


def test_python_guide_runs_and_means_what_it_says(empty_folder, capsys):
    names = run_blocks(ROOT / "docs/python.md")
    assert (empty_folder / "runs/scenes/best/config.json").is_file()
    assert (empty_folder / "runs/mine/best/config.json").is_file()
    assert {file.name for file in names["done"].files} == {"photo.png", "photo.overlay.png"}
    assert "<html" in (empty_folder / "animals.html").read_text()
    assert (names["labels"] == names["marginals"].argmax(0).numpy()).all()
    assert names["both"].keys() == {"best", "last"}
    assert "<html" in (empty_folder / "report.html").read_text()
    joint = np.array([0.9, 0.1])[:, None] * np.array([[2, 1], [1, 2]])
    expected = np.stack([joint.sum(1), joint.sum(0)]) / joint.sum()
    torch.testing.assert_close(names["result"].marginals, torch.from_numpy(expected), check_dtype=False)
    assert all(parameter.grad is not None for parameter in names["model"].parameters())
    assert "no issues found" in capsys.readouterr().out


def test_components_of_ones_own_run(empty_folder):
    from messagenet.settings import _REGISTRY

    for name in mn.__all__:
        getattr(mn, name)  # registers the components of this library, which load on first use
    before = {group: dict(kinds) for group, kinds in _REGISTRY.items()}
    try:
        run_blocks(ROOT / "CONTRIBUTING.md")
        Path("pair.uai").write_text("MARKOV 2  2 2  2  1 0  2 0 1   2  0.9 0.1   4  2 1 1 2")
        by_name = mn.infer("pair.uai", engine="enumerate")
        torch.testing.assert_close(by_name.marginals, mn.infer("pair.uai").marginals)
        assert by_name.map_state.tolist() == [0, 0]
        for folder, part, kind in (("patches", "backbone", "patches"), ("linear", "head", "linear")):
            saved = mn.SegmentationModel.from_pretrained(f"runs/{folder}/best")
            assert saved.config[part]["kind"] == kind
        assert mn.SegmentationModel.from_pretrained("runs/stripes/best").classes.names == ("even", "odd")
    finally:
        for group, kinds in before.items():
            _REGISTRY[group] = kinds


def test_examples_run(empty_folder):
    run_blocks(ROOT / "docs/examples.md")


@pytest.mark.parametrize("index", range(3))
def test_programs_are_short_and_stand_alone(empty_folder, index):
    programs = blocks(ROOT / "docs/python.md", section=PROGRAMS)
    assert len(programs) == 3
    assert lines_of_code(programs[index]) <= MAX_PROGRAM_LINES
    names: dict[str, Any] = {}
    exec(programs[index], names)
    modules = {name for name, value in names.items() if type(value) is type(torch)}
    assert modules == {"torch", "mn"}


def test_a_component_is_short():
    components = [block for block in blocks(ROOT / "CONTRIBUTING.md") if "@mn.register" in block]
    groups = re.findall(r'@mn\.register\("(\w+)"', "".join(components))
    assert groups == ["backbone", "head", "loss", "optimiser", "engine", "data"]
    for block in components:
        tree = ast.parse(block)
        (definition,) = tree.body
        assert isinstance(definition, ast.ClassDef | ast.FunctionDef)
        docstring = definition.body[0]
        size = lines_of_code(block) - lines_of_code(ast.get_source_segment(block, docstring) or "")
        assert size <= MAX_COMPONENT_LINES, definition.name


@pytest.mark.parametrize("path", [*PYTHON, *sorted(ROOT.glob("examples/*.py"))], ids=document_id)
def test_only_the_flat_namespace_is_imported(path):
    code = [path.read_text(encoding="utf-8")] if path.suffix == ".py" else blocks(path)
    for node in (node for block in code for node in ast.walk(ast.parse(block))):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in modules if name.startswith("messagenet.")], path
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mn":
            assert node.attr in mn.__all__, node.attr


@pytest.mark.parametrize("path", DOCUMENTS, ids=document_id)
def test_every_linked_file_exists(path):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
        linked = (path.parent / target) if target else path
        assert linked.exists(), f"{document_id(path)} links {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\s-]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"], ids=document_id)
def test_every_named_module_exists(path):
    for name in re.findall(r"`([\w/]+\.pyi?)`", path.read_text(encoding="utf-8")):
        assert (
            (ROOT / name).exists() or any((ROOT / "src/messagenet").rglob(name)) or any(ROOT.glob(f"tests/**/{name}"))
        ), name


def commands(path: Path) -> Iterator[list[str]]:
    """The words of every `messagenet …` command in shell blocks and inline code."""
    text = path.read_text(encoding="utf-8")
    shell = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    for line in [*shell, *re.findall(r"`(messagenet [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]:
        found = re.match(r"\s*(?:\S+=\S+ )*messagenet ([^#|>]+)", line)
        if found:
            yield found[1].split()


@pytest.mark.parametrize("path", DOCUMENTS, ids=document_id)
def test_commands_and_their_options_exist(path):
    from typer.main import get_command

    from messagenet.cli import app

    for words in commands(path):
        command: Any = get_command(app)
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands") or not words or words[0].startswith("-"), words
        known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        for word in words:
            option = word.partition("=")[0]
            assert not re.fullmatch(r"--?[a-z][a-z-]*", option) or option in known | {"--help"}, words


@pytest.mark.parametrize("path", DOCUMENTS, ids=document_id)
def test_settings_exist(path):
    from messagenet.settings import component_group, find, flat, kinds, options
    from messagenet.training.config import ModelConfig, TrainConfig

    known = {*flat(TrainConfig())}
    groups = {"loss": "loss"}
    groups |= {f"model.{name}": group for name, o in options(ModelConfig).items() if (group := component_group(o.type))}
    for section, group in groups.items():
        known |= {section, f"{section}.kind"}
        known |= {f"{section}.{name}" for kind in kinds(group) for name in options(find(group, kind))}
    text = re.sub(r'there is no setting "[^"]*"', "", path.read_text(encoding="utf-8"))  # quoted errors
    sections = "model|data|augment|loss|optimiser|schedule|run"
    for setting in re.findall(rf"(?:`|--set |\"|\s)((?:{sections})\.[a-z_.]+)(?==|`|\")", text):
        assert setting in known or Path(setting).suffix in {".py", ".json", ".safetensors", ".md"}, setting


def prose() -> Iterator[Path]:
    """Every file whose words are read by users or developers."""
    yield from sorted(ROOT.glob("src/**/*.py"))
    yield from (path for path in DOCUMENTS if path.name != "CHANGELOG.md")
    yield from sorted([*ROOT.glob("recipes/*.yaml"), *ROOT.glob("src/**/*.yaml"), *ROOT.glob("src/**/*.md")])
    yield ROOT / "tests/goldens/error_texts.txt"
    yield from sorted(path for path in ROOT.glob("src/messagenet/explorer/page/*") if path.suffix != ".svg")


@pytest.mark.parametrize("path", list(prose()), ids=document_id)
def test_words_are_the_fields(path):
    text = path.read_text(encoding="utf-8")
    for phrase in ALLOWED:
        text = re.sub(re.escape(phrase), lambda found: " " * len(found[0]), text, flags=re.IGNORECASE)
    found = [
        f"{document_id(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for match in re.finditer(rf"(?<![^\W_])(?:{WORDS})(?![^\W_])", text, flags=re.IGNORECASE)
    ]
    assert not found, found
