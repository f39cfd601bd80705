"""Repair problems from a project of the user's that has tests: put a small mistake in, keep those that tests tell.

project -> its tests pass -> mutants -> tests of each -> problems; why the others were dropped
"""

from tasks.curriculum.mutation.problems import Mutation, Terms, mutate
from tasks.curriculum.mutation.project import Project, open_project

__all__ = ["Mutation", "Project", "Terms", "mutate", "open_project"]
