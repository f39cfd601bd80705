"""A recipe is filled from TOML, and every fault names file, line, key and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_contracts.errors import UserError
from flows.recipe import Recipe, line_of, load_recipe

RECIPES = Path(__file__).parents[2] / "infra" / "recipes"


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(write(folder, text), overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_load(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_sections_are_filled_and_overridden(tmp_path: Path) -> None:
    path = write(
        tmp_path, 'name = "mine"\n[training]\nlora_r = 4\n[canary]\nstages = [{ share = 0.1 }, { share = 0.4 }]\n'
    )
    recipe = load_recipe(path, ["training.lora_r=8", "policy.start=champion", "training.learning_rate=.5"])
    assert (recipe.training.lora_r, recipe.policy.start, recipe.training.learning_rate) == (8, "champion", 0.5)
    assert [stage.share for stage in recipe.canary.stages] == [0.1, 0.4]


def test_unknown_key_names_line_and_the_closest_known_one(tmp_path: Path) -> None:
    message = refusal(tmp_path, 'name = "mine"\n\n[training]\nlora_r = 4\nlearning_rte = 1e-3\n')
    assert message == f"{tmp_path}/recipe.toml:5: unknown key training.learning_rte: write training.learning_rate."


def test_an_abbreviation_is_understood(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[training]\nlr = 1e-3\n").endswith(
        "unknown key training.lr: write training.learning_rate."
    )


def test_a_key_outside_its_section_is_sent_there(tmp_path: Path) -> None:
    assert refusal(tmp_path, "lora_r = 4\n").endswith(":1: unknown key lora_r: write training.lora_r.")


def test_wrong_type_names_line_meaning_and_example(tmp_path: Path) -> None:
    message = refusal(tmp_path, '\niterations = "many"\n')
    assert f'{tmp_path}/recipe.toml:2: iterations = "many": input should be a valid integer' in message
    assert message.endswith("write for example iterations = 60.")


def test_a_text_is_no_number(tmp_path: Path) -> None:
    assert 'iterations = "3"' in refusal(tmp_path, 'iterations = "3"\n')


def test_a_validators_own_remedy_is_kept(tmp_path: Path) -> None:
    message = refusal(tmp_path, "[canary]\nstages = [{ share = 0.5 }, { share = 0.2 }]\n")
    says = "shares of the stages rise from stage to stage: write for example 0.25, then 0.5"
    assert message == f"{tmp_path}/recipe.toml:1: canary: {says}"


def test_broken_toml_names_its_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, 'name = "a"\niterations = \n').startswith(f"{tmp_path}/recipe.toml:2: not TOML")


def test_missing_file_suggests_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").write_text("")
    with pytest.raises(UserError, match=r"quickstrat\.toml does not exist: did you mean .*quickstart\.toml\?"):
        load_recipe(tmp_path / "quickstrat.toml")


def test_a_wrong_override_is_named_as_it_was_given(tmp_path: Path) -> None:
    assert refusal(tmp_path, "", "training.seed=x").startswith('--set training.seed=x: training.seed = "x"')
    assert refusal(tmp_path, "", "rollout").startswith("--set rollout: no assignment")
    assert "has no keys of its own" in refusal(tmp_path, "iterations = 3\n", "iterations.most=3")


def test_faults_beyond_the_first_are_counted(tmp_path: Path) -> None:
    assert refusal(tmp_path, 'iterations = "a"\nround = "b"\n').endswith("(1 more after this one)")


def test_line_of_knows_tables_inline_tables_and_dotted_keys() -> None:
    text = 'a = 1\n[x.y]\nb = { c = 1 }\n[z]\n"d" . e = 2\n'
    keys = [("a",), ("x", "y", "b"), ("x", "y", "b", "c"), ("z", "d", "e"), ("x", "y", "q"), ("w",)]
    assert [line_of(text, key) for key in keys] == [1, 3, 3, 5, 2, None]


def test_equal_recipes_have_equal_digests_whatever_their_layout(tmp_path: Path) -> None:
    one = load_recipe(write(tmp_path, "seed = 3\n[training]\nlora_r = 4\n"))
    other = load_recipe(write(tmp_path, "# the same\nseed = 3\n"), ["training.lora_r=4"])
    assert one.digest == other.digest
    assert one.digest != load_recipe(write(tmp_path, "seed = 4\n")).digest


def test_the_seed_reaches_every_stage_that_draws() -> None:
    seeded = Recipe(seed=7).seeded()
    seeds = (seeded.training.seed, seeded.evaluation.seed, seeded.canary.seed, seeded.reward.probe.seed)
    assert seeds == (7, 7, 7, 7)
    assert seeded.credit.shuffle_seed == 7


def test_every_field_says_what_it_is_and_survives_json() -> None:
    schema = Recipe.model_json_schema()
    nameless = [
        f"{model}.{name}"
        for model, definition in {"Recipe": schema, **schema["$defs"]}.items()
        for name, field in definition["properties"].items()
        if not field.get("description")
    ]
    assert nameless == []
    recipe = Recipe()
    assert Recipe.model_validate(json.loads(recipe.model_dump_json())) == recipe
