"""The contracts as a page to read: made from the same YAML as the checks.

contracts -> templates/contracts.html -> HTML
"""

from __future__ import annotations

from pathlib import Path

from data_contracts.compatibility import versions
from data_contracts.contract import TABLES, load_contract
from data_contracts.odcs import Column
from data_contracts.store import write_atomic

TEMPLATE = Path(__file__).parent / "templates" / "contracts.html"


def write_docs(out: Path) -> Path:
    """Write the page of all contracts and return its path."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text()).render(
        contracts=[load_contract(table) for table in TABLES],
        versions={table: [contract.version for contract in versions(table)] for table in TABLES},
        bounds=_bounds,
    )
    write_atomic(out, page)
    return out


def _bounds(column: Column) -> str:
    """What a cell may be, in words."""
    found = {name: value for name, value in column.logical_type_options.model_dump().items() if value is not None}
    parts = [
        f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in found.items()
    ]
    parts += ["unique"] * column.unique + ["may be null"] * (not column.required)
    parts += [f"JSON: {column.json_shape}"] * (column.json_shape is not None)
    parts += [f"rows of {column.rows_of}"] * (column.rows_of is not None)
    parts += [f"one of {', '.join(column.valid_values)}"] if column.valid_values else []
    return "; ".join(parts)
