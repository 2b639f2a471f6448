"""The strict parse: JSON bodies into typed columns, or the first body that does not fit and why. Pure.

A value fits where the column's type holds exactly what the body says. Numbers may be written as JSON numbers or as texts, as
CSV files have them. Nothing is nulled, rounded or wrapped around, which Spark's own `from_json` does.

Two readers: `parse_fast` takes whole batches through Arrow's own JSON reader, and says no where a batch is not plainly fine;
`parse_exact` then decides, body by body, and knows the reason. Whatever the first one takes, the second one takes, to the
same values.
"""

from __future__ import annotations

import pyarrow as pa

from pipeline.parse_exact import Misfit, read_exactly
from pipeline.parse_fast import read_fast
from pipeline.schema import Struct

__all__ = ["Misfit", "parse"]


def parse(schema: Struct, bodies: pa.BinaryArray) -> pa.Table:
    """A column for each of the schema's, a row for each body. Raises Misfit."""
    fast = read_fast(schema, bodies)
    return read_exactly(schema, bodies) if fast is None else fast
