"""Base and policy, reward model, fingerprints, the starter, the registry of releases.

MLflow reads its switches when it is imported, and deepspeed imports it: so they are set here, before either can be.
"""

import os

from models.mlflow_client import QUIET

os.environ.update(QUIET)
