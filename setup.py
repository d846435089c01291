"""Puts `recipes/` into the package when it is built; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """Recipes have a folder of their own in the repository. An editable install reads that folder."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "dprec", "cli", "recipes")
            self.mkpath(str(target))
            for recipe in sorted(Path("recipes").glob("*.yaml")):
                self.copy_file(str(recipe), str(target / recipe.name))


setup(cmdclass={"build_py": BuildWithRecipes})
