"""A command whose arguments set a recipe's keys: an option that looks like a key is answered with the key's name."""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from typer.core import TyperCommand

from crossdraft.errors import CrossdraftError


class RecipeCommand(TyperCommand):
    """Refuses `--steps 10` with the name of the likely key, `optim.steps`.

    The recipe's schema is imported only when an option is wrong.
    """

    schema = "crossdraft_lab.train.heads.recipe", "HeadRecipe"  # module and class of the recipe
    recipe: str | None = None  # name of the recipe; by default the command's

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an unknown option that looks like a key of the recipe; leave other errors to the base class."""
        known = {
            option for parameter in self.get_params(ctx) for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for option in (arg.partition("=")[0] for arg in args if arg.startswith("--")):
            if option not in known and (key := self._key(option, known, ctx.info_name)) is not None:
                raise CrossdraftError(f"There is no option {option}; a recipe's key is an argument, such as {key}=…")
        return super().parse_args(ctx, args)

    def _key(self, option: str, options: set[str], command: str) -> str | None:
        """Key of the recipe that is nearest to an unknown option; `None` if an existing option is nearer."""
        from crossdraft_lab.train.core.recipe import RECIPES, nearest_key

        module, kind = self.schema
        (path,) = RECIPES.rglob(f"{self.recipe or command}.yaml")
        name, *others = (one.strip("-").replace("-", "_") for one in (option, *options))
        key = nearest_key(name, getattr(import_module(module), kind), path)
        if key is None or get_close_matches(name, [*others, key.rpartition(".")[2]], 1) != [key.rpartition(".")[2]]:
            return None
        return key


def recipe_command(module: str, kind: str, recipe: str | None = None) -> type[RecipeCommand]:
    """Return a `RecipeCommand` for another kind of recipe, which a module of `crossdraft_lab.train` defines."""
    return type(kind, (RecipeCommand,), {"schema": (f"crossdraft_lab.train.{module}", kind), "recipe": recipe})
